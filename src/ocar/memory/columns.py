"""The contents of a memory's slots: one tensor per column, on one device or spread over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ocar import accel
from ocar.errors import InputError

Keep = Callable[[Iterable[Tensor], Sequence[int]], None]
"""Called with the columns and the rows that are about to be overwritten."""


class Columns:
    """Tensors ``(capacity, *item)`` by name, allocated with the first samples.

    Args:
        capacity: Number of slots.
        device: Where the tensors live.
        float_targets: Whether ``y`` may be floating point.

    Attributes:
        tensors: The columns; none before the first samples. With shards each has the rows of this
            rank only.
        shards: Where the slots are, if they are spread over ranks.
    """

    def __init__(self, capacity: int, device: torch.device, *, float_targets: bool) -> None:
        self.device = device
        self.tensors: dict[str, Tensor] = {}
        self.shards: accel.Shards | None = None
        self._capacity, self._float_targets = capacity, float_targets

    @property
    def held(self) -> Tensor:
        """The slot of each row of the columns: all, or those of this rank."""
        return torch.arange(self._capacity) if self.shards is None else self.shards.slots

    @property
    def nbytes(self) -> int:
        """Bytes on this rank."""
        return sum(column.nbytes for column in self.tensors.values())

    def check(self, given: Mapping[str, Tensor], *, rows: Sequence[int]) -> None:
        """Raise an ``InputError`` if items cannot be stored; their shapes begin with ``rows``."""
        for name, column in given.items():
            shape, dtype = tuple(column.shape), column.dtype
            if not shape or shape[:1] != tuple(rows):
                raise InputError(f"Invalid shape {shape} of {name}. Must begin with {tuple(rows)}.")
            kept = self.tensors.get(name, column)
            if shape[1:] != kept.shape[1:] or dtype != kept.dtype:
                raise InputError(
                    f"Invalid {name}: items {shape[1:]} and {dtype}. Must be as those stored, "
                    f"{tuple(kept.shape[1:])} and {kept.dtype}."
                )
            integer = dtype == torch.int64 and len(shape) == 1
            if (
                name == "y"
                and not integer
                and not (self._float_targets and dtype.is_floating_point)
            ):
                allowed = "1-D torch.int64" + (" or floating point" if self._float_targets else "")
                raise InputError(f"Invalid y: {len(shape)}-D {dtype}. Must be {allowed}.")

    def begin(self, given: Mapping[str, Tensor]) -> None:
        """Allocate the columns, filled with the first samples again and again.

        Not with zeros: a slot whose first item was not accepted must hold a real one too.
        """
        repeated = self.held % len(next(iter(given.values())))
        self.tensors = {
            name: column.detach()[repeated.to(column.device)].to(self.device)
            for name, column in given.items()
        }

    def write(
        self,
        given: Mapping[str, Tensor],
        writes: Mapping[int, int],
        *,
        accepted: Tensor | None = None,
        keep: Keep | None = None,
    ) -> None:
        """Put rows of some or all columns into slots, unless ``accepted`` is False."""
        own = writes if self.shards is None else self.shards.own(writes)
        if own and keep is not None:
            keep(self.tensors.values(), list(own))
        if own:
            accel.write_rows(self.tensors, given, own, accepted)

    def gather(self, slots: Tensor) -> dict[str, Tensor]:
        """What slots on the columns' device hold, on whichever rank they are."""
        if self.shards is not None:
            return self.shards.gather(self.tensors, slots)
        return {name: column.index_select(0, slots) for name, column in self.tensors.items()}

    def whole(self, column: Tensor) -> Tensor:
        """A value for each row as one for each slot, on whichever rank they are."""
        return column if self.shards is None else self.shards.whole(column)

    def equal(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Which slots hold one of n samples; bool of ``(capacity,)``, on the host."""
        found = torch.zeros(len(self.held), dtype=torch.bool, device=self.device)
        for row in range(len(next(iter(parts.values()))) if self.tensors else 0):
            own = {name: part[row].to(self.device) for name, part in parts.items()}
            same = [(self.tensors[n] == part).flatten(1).all(1) for n, part in own.items()]
            found |= torch.stack(same).all(0)
        return self.whole(found).cpu()

    def overwrite(self, empty: np.ndarray, by: Tensor) -> None:
        """Let slots where ``empty`` is true, bool ``(capacity,)``, hold what slot ``by`` holds."""
        rows = torch.from_numpy(np.flatnonzero(empty[self.held.numpy()])).to(self.device)
        first = self.gather(by.to(self.device))
        for name, column in self.tensors.items():
            column[rows] = first[name]

    def widen(self, name: str, width: int) -> None:
        """Make the first dimension of a column's items at least ``width``; zeros fill it up."""
        column = self.tensors[name]
        if column.shape[1] < width:
            wider = column.new_zeros(len(column), width, *column.shape[2:])
            wider[:, : column.shape[1]] = column
            self.tensors[name] = wider

    def state_dict(self) -> dict[str, Tensor]:
        """Copies with all slots, on the host."""
        return {n: self.whole(c).to("cpu", copy=True) for n, c in self.tensors.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy what :meth:`state_dict` gave, into the same storage where there is any."""
        own = {n: c if self.shards is None else c[self.shards.slots] for n, c in state.items()}
        if not self.tensors or not own:
            self.tensors = {n: torch.empty_like(c, device=self.device) for n, c in own.items()}
        for name, column in own.items():
            self.tensors[name].copy_(column)
