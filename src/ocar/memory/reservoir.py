"""A uniform sample of everything offered so far."""

from __future__ import annotations

import torch

from ocar.memory.memory import Memory, Offer, Placement


class ReservoirMemory(Memory):
    """Keeps a uniform sample of everything offered so far.

    Algorithm R of Vitter, "Random sampling with a reservoir", ACM TOMS 11(1), 1985: sample i,
    counted from 0, draws j uniformly from 0..i once the slots are full, and replaces slot j if
    there is one.
    """

    float_targets = True

    def place(self, offer: Offer) -> Placement:
        """Fill the slots, then replace at random."""
        filling = min(len(offer), max(self.capacity - self.seen, 0))
        writes = {self.seen + row: row for row in range(filling)}
        uniform = torch.rand(len(offer) - filling, dtype=torch.float64, generator=self.generator)
        for row, u in enumerate(uniform.tolist(), start=filling):
            slot = int(u * min(self.seen + row + 1, self.horizon))
            if slot < self.capacity:
                writes[slot] = row  # of two rows that draw one slot, the later stays
        return Placement(writes)
