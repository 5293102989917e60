"""An equal share of the slots for every class seen so far."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from ocar.errors import CheckpointError
from ocar.memory.memory import Memory, Offer, Placement


class ClassBalancedMemory(Memory):
    """Keeps an equal share for every class seen so far, a uniform sample within each.

    With n classes each has ``capacity // n`` slots and the first ``capacity % n`` to appear have
    one more; a class that has offered fewer samples than its share leaves slots empty. Every sample
    gets a random priority, and a class keeps the highest of all that it ever offered. So its sample
    is uniform, and stays so when a new class shrinks its share. With more classes than slots, the
    first ``capacity`` classes keep one sample each and later ones none.
    """

    def start(self) -> None:
        """No class yet."""
        # (priority, slot) of the stored samples of each class, in order of first appearance
        self._heaps: dict[int, list[tuple[float, int]]] = {}
        self._quotas: dict[int, int] = {}
        self._free = list(range(self.capacity))  # a heap: the lowest free slot is used first

    def place(self, offer: Offer) -> Placement:
        """Make room for new classes, then keep the highest priorities of each class."""
        uniform = torch.rand(len(offer), dtype=torch.float64, generator=self.generator)
        known = self._heaps.keys() >= set(offer.labels)
        freed = [] if known else self._share_out(offer.labels)
        writes: dict[int, int] = {}
        for row, (label, priority) in enumerate(zip(offer.labels, uniform.tolist(), strict=True)):
            heap = self._heaps[label]
            if len(heap) < self._quotas[label]:
                slot = heapq.heappop(self._free)
                heapq.heappush(heap, (priority, slot))
            elif heap and priority > heap[0][0]:
                slot = heap[0][1]
                heapq.heapreplace(heap, (priority, slot))
            else:
                continue
            writes[slot] = row
        return Placement(writes, freed)

    def _share_out(self, labels: Sequence[int]) -> list[int]:
        """Give new classes their shares; return the slots that this frees."""
        for label in labels:
            self._heaps.setdefault(label, [])
        self._quotas = _quotas(self.capacity, list(self._heaps))
        freed = []
        for label, heap in self._heaps.items():
            while len(heap) > self._quotas[label]:
                freed.append(heapq.heappop(heap)[1])
                heapq.heappush(self._free, freed[-1])
        return freed

    def relabel(self, labels: list[int]) -> Sequence[int]:
        """Sort the stored samples by the labels that they really have."""
        stored = sorted(chain.from_iterable(self._heaps.values()))
        self._heaps = {label: [] for label in self._heaps}
        for item in stored:  # ascending, so each list is a heap
            self._heaps.setdefault(labels[item[1]], []).append(item)
        return self._share_out(())

    def removed(self, slots: Sequence[int]) -> None:
        """Give the slots back to the free ones; each class keeps its share."""
        gone = set(slots)
        for label, heap in self._heaps.items():
            self._heaps[label] = [item for item in heap if item[1] not in gone]
            heapq.heapify(self._heaps[label])
        self._free = sorted([*self._free, *gone])

    def policy_state(self) -> dict[str, Tensor]:
        """Classes in order of appearance, and the priority in each slot, −1 for an empty one."""
        priorities = [-1.0] * self.capacity
        for priority, slot in chain.from_iterable(self._heaps.values()):
            priorities[slot] = priority
        return {
            "classes": torch.tensor(list(self._heaps), dtype=torch.int64),
            "priorities": torch.tensor(priorities, dtype=torch.float64),
        }

    def load_policy_state(self, state: Mapping[str, Tensor], labels: list[int]) -> None:
        """Restore what :meth:`policy_state` gave."""
        classes, priorities = state["classes"].tolist(), state["priorities"].tolist()
        occupied = [slot for slot, label in enumerate(labels) if label >= 0]
        with_priority = [slot for slot, priority in enumerate(priorities) if priority >= 0]
        if len(priorities) != self.capacity or with_priority != occupied:
            raise CheckpointError("Invalid priorities. Must be one for each occupied slot.")
        heaps: dict[int, list[tuple[float, int]]] = {label: [] for label in classes}
        for slot in occupied:
            heaps.setdefault(labels[slot], []).append((priorities[slot], slot))
        quotas = _quotas(self.capacity, classes)
        held = {label: len(heap) for label, heap in heaps.items()}
        if any(count > quotas.get(label, 0) for label, count in held.items()):
            raise CheckpointError(f"Invalid numbers by class {held}. Must be at most {quotas}.")
        for heap in heaps.values():
            heapq.heapify(heap)
        self._heaps, self._quotas = heaps, quotas
        self._free = [slot for slot in range(self.capacity) if labels[slot] < 0]


def _quotas(capacity: int, classes: Sequence[int]) -> dict[int, int]:
    """Slots of each class: equal shares, the remainder one each to the first."""
    share, rest = divmod(capacity, max(len(classes), 1))
    return {label: share + (rank < rest) for rank, label in enumerate(classes)}
