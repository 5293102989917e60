"""The state of an optimizer as tensors by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ocar.errors import CheckpointError


def save_optimizer(optimizer: torch.optim.Optimizer | None) -> dict[str, Tensor]:
    """The state, one name for each parameter and quantity."""
    if optimizer is None:
        return {}
    states = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, state in states.items()
        for name, value in state.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer | None, state: Mapping[str, Tensor]) -> None:
    """Restore what :func:`save_optimizer` gave; a ``CheckpointError`` if it is of another."""
    if optimizer is None:
        if state:
            raise CheckpointError(
                f"The checkpoint has an optimizer: {sorted(state)[:3]}. Here: none."
            )
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states: dict[int, dict[str, Tensor]] = {}
    for full, value in state.items():
        index, _, name = full.partition(".")
        known = index.isdecimal() and int(index) < len(parameters)
        if not known or not _belongs(value, parameters[int(index)]):
            raise CheckpointError(
                f"The checkpoint is of another optimizer: {full!r} has shape {tuple(value.shape)}."
            )
        states.setdefault(int(index), {})[name] = value.clone()
    try:
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": states, "param_groups": groups})
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"The checkpoint is of another optimizer: {error}") from error


def fit_optimizer_(optimizer: torch.optim.Optimizer | None) -> None:
    """Give parameters that have grown a larger state, in new tensors with zeros in the new rows."""
    for parameter, state in () if optimizer is None else optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                wider = value.new_zeros(parameter.shape)
                wider[: value.shape[0]] = value
                state[name] = wider


def _belongs(value: Tensor, parameter: Tensor) -> bool:
    """Whether a quantity is a number or has the shape of a parameter, perhaps before it grew."""
    if value.dim() == 0:
        return True
    fits = value.shape[1:] == parameter.shape[1:] and value.dim() == parameter.dim()
    return fits and value.shape[0] <= parameter.shape[0]
