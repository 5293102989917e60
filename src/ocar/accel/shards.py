"""Columns of a memory whose slots lie on several ranks: slot s is row s // N of rank s % N."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ocar.accel.ranks import Ranks


class Shards:
    """Finds the slots of a memory on the ranks; ``capacity`` counts the slots of all.

    Attributes:
        slots: The slot of each row on this rank. All ranks have equally many rows; a last row that
            stands for no slot repeats the last slot.
    """

    def __init__(self, ranks: Ranks, capacity: int) -> None:
        self._ranks, self._capacity = ranks, capacity
        self._rows = -(-capacity // ranks.size)
        slots = torch.arange(self._rows) * ranks.size + ranks.rank
        self.slots = slots.clamp(max=capacity - 1)

    def own(self, writes: Mapping[int, int]) -> dict[int, int]:
        """Of slots and what they get, those of this rank: its rows, and what these get."""
        size, rank = self._ranks.size, self._ranks.rank
        return {slot // size: row for slot, row in writes.items() if slot % size == rank}

    def gather(self, columns: Mapping[str, Tensor], slots: Tensor) -> dict[str, Tensor]:
        """The items in slots ``(n,)``, each ``(n, *item)``, in one message.

        Each rank sends its items, and zeros for the others. The sum of the bytes is exact.
        """
        size, rank = self._ranks.size, self._ranks.rank
        index, mine = slots // size, slots % size == rank
        items = {
            name: torch.where(_like(mine, c), c.index_select(0, index), torch.zeros_like(c[:1]))
            for name, c in columns.items()
        }
        flat = [item.contiguous().flatten().view(torch.uint8) for item in items.values()]
        found = self._ranks.sum_(torch.cat(flat)).split([len(part) for part in flat])
        return {
            name: part.clone().view(item.dtype).view(item.shape)
            for part, (name, item) in zip(found, items.items(), strict=True)
        }

    def whole(self, column: Tensor) -> Tensor:
        """A column of all ranks, ``(capacity, *item)``."""
        rows = self._ranks.all_gather(column, [self._rows] * self._ranks.size)
        by_rank = rows.unflatten(0, (self._ranks.size, self._rows))
        return by_rank.transpose(0, 1).flatten(0, 1)[: self._capacity]


def _like(mask: Tensor, column: Tensor) -> Tensor:
    """A mask of rows in the dimensions of a column."""
    return mask.view(-1, *[1] * (column.dim() - 1))
