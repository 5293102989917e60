"""The output layer of a model, with room for classes that have not been seen.

An online learner does not know the number of classes in advance. A head that grew
by one unit for each class would change the shape of every step. This head has a
capacity, masks units without a class, and doubles when it is full. A masked head
gets the same update as one that has just the units it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ocar.accel import MASKED
from ocar.errors import CheckpointError, ModelError
from ocar.state import check_names


class GrowingHead:
    """Binds the labels of a stream to the units of a model's output layer.

    When the layer is full, its weight and bias are enlarged in place, so that the
    parameters remain the same objects.

    Args:
        model: Any module that ends in a linear layer.
        name: Name of that layer; by default the last ``nn.Linear`` of the model.
        classes: Labels that the first units stand for from the start.
        generator: Draws the weights of units that are added.

    Attributes:
        seen: Labels that have appeared; other labels in ``classes`` were given at the start.
        active: Which units stand for a class, ``(capacity,)`` of bool.

    Raises:
        ModelError: There is no such linear layer, or it does not train.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        generator: torch.Generator,
        name: str | None = None,
        classes: Sequence[int] = (),
    ) -> None:
        self.name, self.layer = find_linear_head(model, name)
        self.generator = generator
        self.seen: set[int] = set()
        self._unit: dict[int, int] = {}
        self.active = torch.zeros(0, dtype=torch.bool)
        self.register(classes)
        self.seen.clear()

    @property
    def classes(self) -> list[int]:
        """The label of each unit in use."""
        return list(self._unit)

    @property
    def capacity(self) -> int:
        """Units of the layer, used or not."""
        return self.layer.out_features

    def register(self, labels: Sequence[int]) -> list[int]:
        """The unit of each label, any integer; a new label gets the next free unit."""
        known = len(self._unit)
        self.seen.update(labels)
        for label in labels:
            self._unit.setdefault(label, len(self._unit))
        self.reserve(len(self._unit))
        if len(self._unit) != known or self.active.shape[0] != self.capacity:
            weight = self.layer.weight
            self.active = torch.arange(self.capacity, device=weight.device) < len(self._unit)
        return [self._unit[label] for label in labels]

    def fit_checkpoint(
        self,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        classes: Sequence[int],
        *,
        seen: Iterable[int],
    ) -> None:
        """Take over the capacity and the labels of a checkpoint, once the rest of it fits.

        Args:
            model: The model that the head is part of.
            weights: All weights in the checkpoint, by name.
            classes: The label of each unit in use.
            seen: Labels that have appeared.

        Raises:
            CheckpointError: The checkpoint is of another model.
        """
        own = f"{self.name}."
        others = {n: t for n, t in model.state_dict().items() if not n.startswith(own)}
        given = {n: t for n, t in weights.items() if not n.startswith(own)}
        check_names("model", given, others)
        weight = weights.get(f"{own}weight")
        if weight is None or weight.shape[0] < self.capacity:
            found = "none" if weight is None else f"{weight.shape[0]} units"
            raise CheckpointError(
                f"The checkpoint is of another model: head {self.name!r} has {found}, "
                f"here {self.capacity}."
            )
        self.reserve(weight.shape[0])
        self._unit, self.active = {}, torch.zeros(0, dtype=torch.bool)
        self.register(classes)
        self.seen = set(seen)

    def reserve(self, units: int) -> None:
        """Double the capacity until there are at least ``units``."""
        if units > self.capacity:
            doublings = math.ceil(math.log2(units / self.capacity))
            enlarge_linear_(self.layer, self.capacity * 2**doublings, generator=self.generator)


def mask_logits(logits: Tensor, active: Tensor) -> Tensor:
    """Logits in which unused units have −1000, so that their probability is exactly 0.

    Args:
        logits: Shape ``(n, capacity)``.
        active: Which units stand for a class, ``(capacity,)`` of bool.
    """
    return torch.where(active, logits, MASKED)


def find_linear_head(model: nn.Module, name: str | None = None) -> tuple[str, nn.Linear]:
    """The linear layer that makes a model's outputs, and its name.

    Raises:
        ModelError: There is no such layer, or its weight does not train.
    """
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    listed = ", ".join(layers) or "none"
    if not layers:
        raise ModelError(
            f"{type(model).__name__} has no nn.Linear layer. An output layer of that kind is "
            "needed, since classes are added to it as they appear."
        )
    chosen = name if name is not None else list(layers)[-1]
    if chosen not in layers:
        raise ModelError(f"Invalid head={name!r}. Must name a linear layer of the model: {listed}.")
    layer = layers[chosen]
    if not layer.weight.requires_grad:
        raise ModelError(f"The output layer {chosen!r} is frozen; it must train. Layers: {listed}.")
    return chosen, layer


@torch.no_grad()
def enlarge_linear_(layer: nn.Linear, outputs: int, *, generator: torch.Generator) -> None:
    """Give a linear layer more outputs; present outputs keep their weights.

    New weights are drawn on the host, as ``nn.Linear`` draws its own: uniformly within ±1/√inputs.
    """
    bound = 1 / math.sqrt(layer.in_features)
    for parameter in layer.parameters(recurse=False):
        shape = (outputs - layer.out_features, *parameter.shape[1:])
        new = torch.empty(shape, dtype=parameter.dtype).uniform_(-bound, bound, generator=generator)
        parameter.data = torch.cat([parameter.data, new.to(parameter.device)])
        parameter.grad = None
    layer.out_features = outputs
