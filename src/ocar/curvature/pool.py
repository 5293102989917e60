"""The Kronecker factors of all layers in one buffer, and their inverses in another.

Of A the inverse of the Cholesky factor is kept, see ``KroneckerBlock``, of G the inverse itself.

On a GPU the small steps between two large ones cost most: averaging, traces, damping, the
look for numbers that are not finite, each a kernel or several for each of some forty factors.
In one buffer they are one kernel for all. What remains for each factor is its factorization,
and small factors of one size share even that.

A backward pass comes to the last layers first, and the inverses of their factors, which are often
the largest, need not wait for the others. So the layers are in parts, a range of the buffer each,
that are averaged, damped and inverted one by one. What is found is taken for all parts together.

Nothing here waits for the device, so all of it can be part of a captured graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from ocar.curvature.blocks import KroneckerBlock
from ocar.curvature.linalg import cholesky_inverse_into

STACKED = 192
"""Factors of one size are factorized in one call up to this size; larger ones side by side."""


PART = 6
"""Layers of a part, at most."""


@dataclass(frozen=True)
class _Slot:
    """Where one factor of a layer lies: a matrix for each of its groups."""

    layer: str
    key: str
    start: int
    groups: int
    size: int

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.start + self.groups * self.size**2

    def view(self, buffer: Tensor) -> Tensor:
        """The factor in a buffer, ``(groups, size, size)``."""
        return buffer[self.start : self.end].view(self.groups, self.size, self.size)


@dataclass(frozen=True, eq=False)
class Part:
    """Layers whose factors are averaged, damped and inverted together."""

    layers: frozenset[str]
    slots: tuple[_Slot, ...]

    diagonals: Tensor
    """Places of the diagonals in the buffer, a row for each matrix; rows end in places of 0."""

    dims: Tensor
    """The size of each matrix; of the head's G, which is the last, what is in use of it."""

    partners: Tensor
    """For each matrix the place of the other factor of its layer and group."""

    head: KroneckerBlock | None
    """The layer whose G may start again, if it is one of these."""

    @property
    def span(self) -> slice:
        """Where the factors lie in the buffer."""
        return slice(self.slots[0].start, self.slots[-1].end)

    @property
    def head_start(self) -> int:
        """Where the head's G begins; the end if there is none."""
        return self.slots[-1].end if self.head is None else self.slots[-1].start


class FactorPool:
    """Takes over the averages and the inverses of some blocks, which see them as views.

    Args:
        blocks: Blocks that have averages and inverses, with factored damping, by name, in the
            order of a forward pass.
        head: The name of the one whose G may start again, if any.
    """

    def __init__(self, blocks: Mapping[str, KroneckerBlock], *, head: str | None) -> None:
        self._blocks = blocks
        names = list(blocks)
        groups = [names[max(0, end - PART) : end] for end in range(len(names), 0, -PART)]
        slots: list[list[_Slot]] = []
        used = 0
        for group in groups:
            slots.append(list(_lay_out({n: blocks[n] for n in group}, head, used)))
            used = slots[-1][-1].end
        like = self._slot_average(slots[0][0])
        # One number more than is used, always zero: rows of diagonals end in it.
        buffers = like.new_zeros(4, used + 1).unbind()
        self._values, self._next, self._scratch, self._inverses = buffers
        self.parts = tuple(
            _make_part(same, used, like, blocks.get(head or "") if head in group else None)
            for group, same in zip(groups, slots, strict=True)
        )
        self._diagonals = _diagonals([s for same in slots for s in same], used).to(like.device)
        self._adopt()

    @property
    def _slots(self) -> Iterator[_Slot]:
        return (slot for part in self.parts for slot in part.slots)

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

    def places(self, layer: str) -> dict[str, Tensor]:
        """Where the next estimate of each factor of a layer is to be written, by its key."""
        return {s.key: s.view(self._scratch) for s in self._slots if s.layer == layer}

    def accept(self, part: Part, accepted: Tensor) -> Tensor:
        """Make the estimates that were written finite, if they are not.

        Args:
            part: Whose.
            accepted: A scalar of bool.

        Returns:
            The same, but False if they were not.
        """
        finite = self._scratch[part.diagonals].sum().isfinite()  # the diagonals bound the rest
        self._scratch[part.span].nan_to_num_()
        return accepted & finite

    def average(
        self,
        part: Part,
        ema: Tensor | float,
        head_rate: Tensor | float,
        *,
        accepted: Tensor | None = None,
    ) -> None:
        """Mix the estimates that were written with the averages; :meth:`take` makes it last.

        Args:
            part: Whose.
            ema: Weight of the estimates.
            head_rate: That of the head's G.
            accepted: A scalar of bool; where it is False the averages stay as they are.
        """
        if accepted is not None:
            ema, head_rate = (accepted.double() * rate for rate in (ema, head_rate))
        start, cut, end = part.span.start, part.head_start, part.span.stop
        for span, rate in ((slice(start, cut), ema), (slice(cut, end), head_rate)):
            old, new, mixed = self._values[span], self._scratch[span], self._next[span]
            if len(old):
                weight = rate.to(old.dtype) if isinstance(rate, Tensor) else rate
                torch.lerp(old, new, weight, out=mixed)

    def damp(self, part: Part, damping: Tensor | float, active: Tensor | None = None) -> Tensor:
        """Write the damped averages where the estimates were.

        Each pair A, G gets √(τ · mean trace of the one / of the other) on its diagonals, as in
        :func:`ocar.curvature.linalg.factored_damping`.

        Args:
            part: Whose.
            damping: τ.
            active: How many outputs of the head are in use, a scalar; None for all.

        Returns:
            How many averages are not finite, a scalar.
        """
        diagonals = self._next[part.diagonals]
        traces = diagonals.sum(-1)
        if part.head is not None and active is not None:
            part.dims[-1].copy_(active)
        means = traces / part.dims
        others = means[part.partners]
        balanced = (means > 0) & (others > 0)
        ratios = torch.where(balanced, means / others, 1)
        damped = diagonals + (ratios * damping).sqrt().to(diagonals.dtype).unsqueeze(-1)
        self._scratch[part.span].copy_(self._next[part.span])
        self._scratch.scatter_(0, part.diagonals.flatten(), damped.flatten())
        self._scratch[-1].zero_()  # where rows end
        return (~traces.isfinite()).sum()

    def inversions(self, part: Part) -> Iterator[tuple[int, Callable[[], Tensor]]]:
        """Jobs that replace the damped averages by their inverses, each with its cost.

        They do not depend on each other. Each returns what the factorizations reported,
        of int; 0 where all went well.
        """
        last = part.slots[-1] if part.head is not None else None

        def kind(slot: _Slot) -> tuple[bool, int, str]:
            return slot is last, slot.size, slot.key

        for (_, size, key), slots in groupby(part.slots, key=kind):
            same = list(slots)
            together = _Slot("", key, same[0].start, sum(slot.groups for slot in same), size)
            for slot in [together] if size <= STACKED else same:
                yield size + 32, partial(self._invert, slot)

    def _invert(self, slot: _Slot) -> Tensor:
        return cholesky_inverse_into(slot.view(self._scratch), half=slot.key == "A")

    def failures(self, reports: Sequence[Tensor]) -> Tensor:
        """How many factors of all parts have no inverse, a scalar.

        Args:
            reports: What the jobs of :meth:`inversions` returned.
        """
        good = self._scratch[self._diagonals].sum(-1).isfinite()  # the diagonal bounds the rest
        return (torch.cat([*reports]) != 0).sum() + (~good).sum()

    def renew(self, good: Tensor) -> None:
        """Take the inverses of all parts.

        Args:
            good: A scalar of bool; where it is False the old ones stay.
        """
        torch.where(good, self._scratch, self._inverses, out=self._inverses)

    def take(self, accepted: Tensor | None) -> None:
        """Take the averages of all parts.

        Args:
            accepted: A scalar of bool; where it is False the old ones stay. None is True.
        """
        if accepted is None:
            self._values.copy_(self._next)
        else:
            torch.where(accepted, self._next, self._values, out=self._values)


def _make_part(slots: Sequence[_Slot], end: int, like: Tensor, head: KroneckerBlock | None) -> Part:
    sizes = [slot.size for slot in slots for _ in range(slot.groups)]
    return Part(
        layers=frozenset(slot.layer for slot in slots),
        slots=tuple(slots),
        diagonals=_diagonals(slots, end).to(like.device),
        dims=torch.tensor(sizes, dtype=like.dtype, device=like.device),
        partners=_partners(slots).to(like.device),
        head=head,
    )


def _lay_out(blocks: Mapping[str, KroneckerBlock], head: str | None, start: int) -> Iterator[_Slot]:
    """Slots from a place on by size, so that equal ones are neighbours; the head's G last."""
    found = [
        (layer == head and key == "G", average.shape[-1], key, layer, average.shape[0])
        for layer, block in blocks.items()
        for key, average in block.averages.items()
    ]
    for _, size, key, layer, groups in sorted(found):
        yield _Slot(layer, key, start, groups, size)
        start += groups * size**2


def _diagonals(slots: Sequence[_Slot], end: int) -> Tensor:
    """Places of the diagonals, a row for each matrix, filled up with ``end``."""
    rows = [
        slot.start + group * slot.size**2 + torch.arange(slot.size) * (slot.size + 1)
        for slot in slots
        for group in range(slot.groups)
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float(end))


def _partners(slots: Sequence[_Slot]) -> Tensor:
    """For each matrix the place of the other factor of its layer and group."""
    order = [(slot.layer, slot.key, group) for slot in slots for group in range(slot.groups)]
    place = {name: index for index, name in enumerate(order)}
    other = {"A": "G", "G": "A"}
    return torch.tensor([place[layer, other[key], group] for layer, key, group in order])
