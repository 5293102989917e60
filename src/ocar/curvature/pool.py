"""The Kronecker factors of all layers in one buffer, and their inverses in another.

Of A the inverse of the Cholesky factor is kept, see ``KroneckerBlock``, of G the inverse itself.

On a GPU the small steps between two large ones cost most: averaging, traces, damping, the
look for numbers that are not finite, each a kernel or several for each of some forty factors.
In one buffer they are one kernel for all. What remains for each factor is its factorization,
and small factors of one size share even that.

Nothing here waits for the device, so all of it can be part of a captured graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from ocar.curvature.blocks import KroneckerBlock
from ocar.curvature.linalg import cholesky_inverse_into

STACKED = 192
"""Factors of one size are factorized in one call up to this size; larger ones side by side."""


@dataclass(frozen=True)
class _Slot:
    """Where one factor of a layer lies: a matrix for each of its groups."""

    layer: str
    key: str
    start: int
    groups: int
    size: int

    def view(self, buffer: Tensor) -> Tensor:
        """The factor in a buffer, ``(groups, size, size)``."""
        count = self.groups * self.size**2
        return buffer[self.start : self.start + count].view(self.groups, self.size, self.size)


class FactorPool:
    """Takes over the averages and the inverses of some blocks, which see them as views.

    Args:
        blocks: Blocks that have averages and inverses, with factored damping, by name.
        head: The name of the one whose G may start again, if any.
    """

    def __init__(self, blocks: Mapping[str, KroneckerBlock], *, head: str | None) -> None:
        self._blocks = blocks
        self._head = blocks.get(head or "")
        self._slots = list(_lay_out(blocks, head))
        like = self._slot_average(self._slots[0])
        last = self._slots[-1]
        used = last.start + last.groups * last.size**2
        # One number more than is used, always zero: rows of diagonals end in it.
        self._values, self._scratch, self._inverses = like.new_zeros(3, used + 1).unbind()
        self._table = _diagonals(self._slots, used).to(like.device)
        sizes = [slot.size for slot in self._slots for _ in range(slot.groups)]
        self._sizes = sizes
        self._dims = torch.tensor(sizes, dtype=like.dtype, device=like.device)
        self._partners = _partners(self._slots).to(like.device)
        self._head_start = last.start if self._head is not None else used
        self._adopt()

    def _slot_average(self, slot: _Slot) -> Tensor:
        return self._blocks[slot.layer].averages[slot.key]

    def _adopt(self) -> None:
        """Move averages and inverses into the buffers."""
        for slot in self._slots:
            block = self._blocks[slot.layer]
            average, inverse = slot.view(self._values), slot.view(self._inverses)
            block.averages[slot.key] = average.copy_(block.averages[slot.key])
            block.move_inverse(slot.key, inverse)

    def fits(self, blocks: Mapping[str, KroneckerBlock]) -> bool:
        """Whether these are the blocks taken over, and none has got other tensors since."""
        return blocks.keys() == self._blocks.keys() and all(
            self._slot_average(slot).data_ptr() == slot.view(self._values).data_ptr()
            and self._slot_average(slot).shape == slot.view(self._values).shape
            for slot in self._slots
        )

    @property
    def scratch(self) -> Tensor:
        """The buffer that the next estimates are to be written into."""
        return self._scratch

    def starts(self, key: str) -> dict[str, int]:
        """Where in it a factor of each layer starts."""
        return {slot.layer: slot.start for slot in self._slots if slot.key == key}

    def places(self, layer: str) -> dict[str, Tensor]:
        """Where the next estimate of each factor of a layer is to be written, by its key."""
        return {s.key: s.view(self._scratch) for s in self._slots if s.layer == layer}

    def accept(self, accepted: Tensor | None) -> Tensor | None:
        """Look whether the estimates that were written can be taken; called first.

        Args:
            accepted: A scalar of bool, or None to take them however they are.

        Returns:
            The same, but False if they are not finite.
        """
        if accepted is None:
            return None
        finite = self._scratch[self._table].sum().isfinite()  # the diagonals bound the rest
        self._scratch.nan_to_num_()
        return accepted & finite

    def mix(
        self,
        ema: Tensor | float,
        head_rate: Tensor | float,
        damping: Tensor | float,
        *,
        accepted: Tensor | None,
    ) -> Tensor:
        """Mix the estimates that were written into the averages, and write these damped there.

        Each pair A, G gets √(τ · mean trace of the one / of the other) on its diagonals, as in
        :func:`ocar.curvature.linalg.factored_damping`.

        Args:
            ema: Weight of the estimates.
            head_rate: That of the head's G.
            damping: τ.
            accepted: What :meth:`accept` gave; where it is False the averages stay as they are.

        Returns:
            How many averages are not finite, a scalar.
        """
        self._average(ema, head_rate, accepted)
        return self._damp(damping)

    def _average(
        self, ema: Tensor | float, head_rate: Tensor | float, accepted: Tensor | None
    ) -> None:
        if accepted is not None:
            ema, head_rate = (accepted.double() * rate for rate in (ema, head_rate))
        cut = self._head_start
        for part, rate in ((slice(0, cut), ema), (slice(cut, -1), head_rate)):
            old, new = self._values[part], self._scratch[part]
            if len(old):
                old.lerp_(new, rate.to(old.dtype) if isinstance(rate, Tensor) else rate)

    def _damp(self, damping: Tensor | float) -> Tensor:
        diagonals = self._values[self._table]
        traces = diagonals.sum(-1)
        self._count_outputs()
        means = traces / self._dims
        others = means[self._partners]
        balanced = (means > 0) & (others > 0)
        ratios = torch.where(balanced, means / others, 1)
        damped = diagonals + (ratios * damping).sqrt().to(diagonals.dtype).unsqueeze(-1)
        self._scratch.copy_(self._values)
        self._scratch.scatter_(0, self._table.flatten(), damped.flatten())
        return (~traces.isfinite()).sum()

    def _count_outputs(self) -> None:
        """Let those rows of the head's G count that stand for a class."""
        if self._head is not None and self._head.active_outputs is not None:
            self._dims[-1].copy_(self._head.active_outputs)

    def inversions(self) -> Iterator[tuple[int, Callable[[], Tensor]]]:
        """Jobs that replace the damped averages by their inverses, each with its cost.

        They do not depend on each other. Each returns what the factorizations reported,
        of int; 0 where all went well.
        """
        for (_, size, key), slots in groupby(self._slots, key=self._kind):
            same = list(slots)
            together = _Slot("", key, same[0].start, sum(slot.groups for slot in same), size)
            for slot in [together] if size <= STACKED else same:
                yield size + 32, partial(self._invert, slot)

    def _kind(self, slot: _Slot) -> tuple[bool, int, str]:
        """What must be the same for slots to be factorized in one call."""
        is_own = self._head is not None and slot is self._slots[-1]
        return is_own, slot.size, slot.key

    def _invert(self, slot: _Slot) -> Tensor:
        return cholesky_inverse_into(slot.view(self._scratch), half=slot.key == "A")

    def renew(self, reports: list[Tensor], infinite: Tensor) -> Tensor:
        """Take the inverses, if all of them are good; otherwise the old ones stay.

        Args:
            reports: What the jobs of :meth:`inversions` returned.
            infinite: What :meth:`mix` returned.

        Returns:
            How many factors had no inverse, a scalar.
        """
        good = self._scratch[self._table].sum(-1).isfinite()  # the diagonal bounds the rest
        failed = (torch.cat(reports) != 0).sum() + (~good).sum()
        torch.where(failed + infinite > 0, self._inverses, self._scratch, out=self._inverses)
        return failed

    def precondition_(self) -> bool:
        """Rewrite the gradients of all blocks together, if that can be done, and say so."""
        return False


def _lay_out(blocks: Mapping[str, KroneckerBlock], head: str | None) -> Iterator[_Slot]:
    """Slots by size, so that equal ones are neighbours; the head's G last."""
    found = [
        (layer == head and key == "G", average.shape[-1], key, layer, average.shape[0])
        for layer, block in blocks.items()
        for key, average in block.averages.items()
    ]
    start = 0
    for _, size, key, layer, groups in sorted(found):
        yield _Slot(layer, key, start, groups, size)
        start += groups * size**2


def _diagonals(slots: list[_Slot], end: int) -> Tensor:
    """Places of the diagonals, a row for each matrix, filled up with ``end``."""
    rows = [
        slot.start + group * slot.size**2 + torch.arange(slot.size) * (slot.size + 1)
        for slot in slots
        for group in range(slot.groups)
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float(end))


def _partners(slots: list[_Slot]) -> Tensor:
    """For each matrix the place of the other factor of its layer and group."""
    order = [(slot.layer, slot.key, group) for slot in slots for group in range(slot.groups)]
    place = {name: index for index, name in enumerate(order)}
    other = {"A": "G", "G": "A"}
    return torch.tensor([place[layer, other[key], group] for layer, key, group in order])
