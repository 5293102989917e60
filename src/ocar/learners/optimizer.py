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
    """Restore what :func:`save_optimizer` gave.

    Raises:
        CheckpointError: The state is of another optimizer.
    """
    if optimizer is None:
        if state:
            raise CheckpointError(
                f"The checkpoint has an optimizer: {sorted(state)[:3]}. Here: none."
            )
        return
    states: dict[int, dict[str, Tensor]] = {}
    for full, value in state.items():
        index, _, name = full.partition(".")
        states.setdefault(int(index), {})[name] = value.clone()
    try:
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": states, "param_groups": groups})
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"The checkpoint is of another optimizer: {error}") from error
