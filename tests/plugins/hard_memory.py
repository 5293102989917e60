"""A memory that keeps what is hard to learn: the samples with the largest loss."""

from collections.abc import Mapping

import torch
from torch import Tensor

import ocar
from ocar.memory import Memory, Offer, Placement


class HardMemory(Memory):
    """Keeps the samples whose loss was largest when they were offered."""

    uses = ("loss",)

    def start(self) -> None:
        self.losses = torch.full((self.capacity,), -1.0)  # of each slot; -1 for an empty one

    def place(self, offer: Offer) -> Placement:
        writes = {}
        for row, loss in enumerate(offer.known["loss"].tolist()):
            slot = int(self.losses.argmin())
            if loss > float(self.losses[slot]):
                self.losses[slot] = loss
                writes[slot] = row
        return Placement(writes)

    def policy_state(self) -> dict[str, Tensor]:
        return {"losses": self.losses.clone()}

    def load_policy_state(self, state: Mapping[str, Tensor], labels: list[int]) -> None:
        self.losses = state["losses"].clone()


ocar.register("hard", HardMemory)
