"""The base of every kind of layer: its parameters, and samples in the first dimension."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ocar import accel
from ocar.curvature.places import Place, places
from ocar.errors import ModelError


@dataclass(frozen=True, eq=False)
class Use:
    """How a layer used its weight once, besides the input."""

    #: How a convolution was made; by default as the module says.
    geometry: nn.Module | accel.Geometry | None = None
    rows: slice | None = None  #: The rows of the weight that were used; None for all.
    #: The size of the second dimension in attention, which has the samples there; else 0.
    time_first: int = 0
    with_bias: bool = True  #: Whether the bias of the layer, if it has one, was added.


ONCE = Use()
"""The whole weight, as the module says, samples first."""


class Layer(ABC):
    """A layer with trainable parameters.

    Args:
        name: Its name within the model.
        module: The module that has the parameters.
        weight: What the module calls the weight.
        bias: What it calls the bias; None for none.
        by_function: Whether the weight is looked for in calls of functions such as
            ``functional.linear``, because calls of the module do not show the weight's input.

    Attributes:
        modules: The modules that use the weight; several if they share it.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        *,
        weight: str = "weight",
        bias: str | None = "bias",
        by_function: bool = False,
    ) -> None:
        self.name = name
        self.module = module
        self.weight_name, self.bias_name = weight, bias
        self.by_function = by_function
        self.modules = [module]

    def __str__(self) -> str:
        return f"layer {self.name!r}"

    @property
    def weight(self) -> nn.Parameter:
        """The weight."""
        return cast("nn.Parameter", self.module._parameters[self.weight_name])

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias, if there is one that trains."""
        bias = None if self.bias_name is None else self.module._parameters.get(self.bias_name)
        return bias if bias is not None and bias.requires_grad else None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Its trainable weight and bias."""
        own = (self.module._parameters.get(self.weight_name), self.bias)
        return [p for p in own if p is not None and p.requires_grad]

    @property
    def has_gradient(self) -> bool:
        """Whether all of its parameters have a gradient."""
        return all(p.grad is not None for p in self.parameters)

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its usual statistics, by name."""

    def sample_dims(self, x: Tensor, use: Use = ONCE) -> Sequence[int]:
        """The dimensions of an input that may hold the samples, the likeliest first."""
        return (0,)

    def arranged(self, x: Tensor, g: Tensor, use: Use = ONCE) -> tuple[Tensor, Tensor]:
        """Input and output gradients, time and what attention calls the batch apart."""
        if not use.time_first:
            return x, g
        x = x.reshape(-1, use.time_first, x.shape[-1])
        return x, g.reshape(len(g), -1, use.time_first, g.shape[-1])

    def by_sample(
        self, x: Tensor, g: Tensor, samples: int, use: Use = ONCE, place: Place | None = None
    ) -> tuple[Tensor, Tensor]:
        """Input ``(n, ...)`` and output gradients ``(columns, n, ...)``, in float32 at least.

        ``place`` is where the samples are; by default the likeliest place.
        """
        wide = torch.promote_types(g.dtype, torch.float32)
        x, g = x.to(wide) if x.is_floating_point() else x, g.to(wide)
        x, g = self.arranged(x, g, use)
        options = places(x.shape, samples, self.sample_dims(x, use))
        if not options:
            raise ModelError(
                f"Layer {self.name!r} saw {x.shape[0]} rows for {samples} samples, of shape "
                f"{tuple(x.shape)}. Its curvature needs as many rows for each sample; leave it out "
                f"with exclude=[{self.name!r}]."
            )
        place = place if place in options else options[0]
        return place.first(x, samples), place.first(g, samples, before=1)
