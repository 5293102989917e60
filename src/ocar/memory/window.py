"""The latest samples only."""

from __future__ import annotations

from ocar.memory.memory import Memory, Offer, Placement


class WindowMemory(Memory):
    """Keeps the last ``capacity`` samples: sample i, counted from 0, goes to slot i mod capacity.

    For streams whose concepts are replaced. A class that is absent for longer is forgotten.
    """

    float_targets = True

    def start(self) -> None:
        """It represents as many samples as it holds."""
        self.horizon = self.capacity

    def place(self, offer: Offer) -> Placement:
        """Replace the oldest."""
        return Placement({(self.seen + row) % self.capacity: row for row in range(len(offer))})
