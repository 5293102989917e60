"""Checks of what a learner is given; anything else raises before something changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ocar.errors import CheckpointError, InputError, ModelError
from ocar.models.head import GrowingHead
from ocar.models.modes import evaluating


class Item(NamedTuple):
    """Shape and type of one sample of a stream."""

    shape: torch.Size
    dtype: torch.dtype


def check_samples(x: Tensor, *, like: Item | None) -> Item:
    """Shape and type of samples.

    Args:
        x: Raw samples, ``(n, ...)``.
        like: Shape and type of the samples so far; None at the start.

    Raises:
        InputError: They are not finite, of the wrong type, or unlike those before.
    """
    if not isinstance(x, Tensor) or x.dim() < 2:
        raise InputError(f"x must be a tensor (n, ...) of samples; given {_shown(x)}.")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise InputError(f"x must be uint8 or floating point; given {x.dtype}.")
    item = Item(x.shape[1:], x.dtype)
    if like is not None and item != like:
        raise InputError(
            f"x must hold samples of shape {tuple(like.shape)} and {like.dtype}, as before; "
            f"given {tuple(item.shape)} and {item.dtype}."
        )
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
        raise InputError(f"x must be finite; {bad} of {x.shape[0]} samples hold NaN or Inf.")
    return item


def check_length(x: Tensor, y: Tensor) -> None:
    """Raise if a batch is empty, or has more or fewer targets than samples.

    Raises:
        InputError: The lengths do not fit.
    """
    if x.shape[0] == 0:
        raise InputError("The batch is empty; it must have at least one sample.")
    if not isinstance(y, Tensor) or y.dim() == 0 or y.shape[0] != x.shape[0]:
        raise InputError(f"y must have one entry for each of {len(x)} samples; given {_shown(y)}.")


def check_labels(y: Tensor) -> list[int]:
    """Labels as integers on the host.

    Raises:
        InputError: They are not integers of shape ``(n,)``, or one is negative.
    """
    if y.dim() != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(
            f"y must be integer labels of shape (n,); given {y.dtype} of shape {tuple(y.shape)}."
        )
    labels: list[int] = y.tolist()
    if min(labels) < 0:
        raise InputError(f"Labels must be at least 0; given {min(labels)}.")
    return labels


def check_targets(y: Tensor, *, dtype: torch.dtype, outputs: int) -> None:
    """Raise if regression targets do not fit the model.

    Args:
        y: Shape ``(n, outputs)``.
        dtype: Type of the model's parameters.
        outputs: Outputs of the model.

    Raises:
        InputError: They are of another type or shape, or not finite.
    """
    if y.dtype != dtype or y.shape[1:] != (outputs,):
        raise InputError(
            f"y must be {dtype} of shape (n, {outputs}); given {y.dtype} of shape {tuple(y.shape)}."
        )
    if not bool(torch.isfinite(y).all()):
        raise InputError("y must be finite; it holds NaN or Inf.")


def _shown(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


class Intake:
    """Checks batches, and gives new labels their units.

    Args:
        model: The model that learns.
        head: Its output layer; None in regression.
        normalize: From raw samples to inputs of the model.

    Attributes:
        item: Shape and type of the samples; None before the first.
        outputs: Outputs of the model; 0 before the first sample.
    """

    def __init__(
        self, model: nn.Module, head: GrowingHead | None, normalize: Callable[[Tensor], Tensor]
    ) -> None:
        self.item: Item | None = None
        self.outputs = 0
        self._model = model
        self._head = head
        self._normalize = normalize
        parameter = next(model.parameters())
        self._device, self._dtype = parameter.device, parameter.dtype

    def take(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Check a whole batch, then give new labels their units.

        Returns:
            Samples on the model's device, their units or targets, and the units on the host.

        Raises:
            InputError: The batch cannot be learned from. Nothing has changed.
        """
        item = check_samples(x, like=self.item)
        check_length(x, y)
        units: list[int] = []
        if self._head is None:
            self._try_model(x)
            check_targets(y, dtype=self._dtype, outputs=self.outputs)
        else:
            labels = check_labels(y)
            self._try_model(x)
            units = self._head.register(labels)
            y = torch.tensor(units)
        self.item = item
        return x.to(self._device, non_blocking=True), y, units

    def _try_model(self, x: Tensor) -> None:
        """Try the first sample ever, so that a model that cannot take it fails at once."""
        if self.item is not None:
            return
        try:
            with evaluating(self._model):
                outputs = self._model(self._normalize(x[:1].to(self._device)))
        except RuntimeError as error:
            raise InputError(
                f"The model cannot take samples of shape {tuple(x.shape[1:])}: {error}"
            ) from error
        wanted = outputs.shape[-1] if self._head is None else self._head.capacity
        if outputs.shape != (1, wanted):
            name = "" if self._head is None else f", the outputs of layer {self._head.name!r}"
            raise ModelError(
                f"The model must return shape (n, {wanted}){name}; it returned "
                f"{tuple(outputs.shape)} for one sample."
            )
        self.outputs = outputs.shape[-1]

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        item = None if self.item is None else [list(self.item.shape), str(self.item.dtype)]
        return {"item": item, "outputs": self.outputs}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` gave.

        Raises:
            CheckpointError: The samples have a type that does not exist.
        """
        item = None
        if state["item"] is not None:
            shape, name = state["item"]
            dtype = getattr(torch, str(name).removeprefix("torch."), None)
            if not isinstance(dtype, torch.dtype):
                raise CheckpointError(f"The checkpoint has samples of unknown type {name!r}.")
            item = Item(torch.Size(shape), dtype)
        self.item, self.outputs = item, int(state["outputs"])
