"""An entry of the zoo, what models are made of, and what they are fed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

LEARNS = "learns"
UNITS = 4
"""Units of every head at the start; the stream has five classes, so that it has to grow."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model and what becomes of it."""

    make: Callable[[], nn.Module]
    group: str
    fed: str = "vectors"  #: A key of ``INPUTS``.
    settings: Mapping[str, Any] = field(default_factory=dict)  #: Of the learner.
    er: str = LEARNS  #: What ER does: it learns, or a part of its message.
    ocar: str = LEARNS  #: What OCAR does.
    batches: int = 18  #: That it learns.


class Net(nn.Module):
    """A module whose forward pass is a function of itself and the inputs."""

    def __init__(self, run: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        """Outputs."""
        return self.run(self, x)


class Group(dict[str, Entry]):
    """The models of one kind, by name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __call__(self, name: str, make: Callable[[], nn.Module], **about: Any) -> None:
        """Add a model; ``refused`` is what both methods say."""
        assert name not in self
        refused = about.pop("refused", None)
        if refused is not None:
            about |= {"er": refused, "ocar": refused}
        self[name] = Entry(make=make, group=self.name, **about)


class LoRA(nn.Module):
    """A frozen linear layer and a trained difference of low rank."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        outputs: Tensor = self.base(x) + self.up(self.down(x))
        return outputs


def head(inputs: int = 16) -> nn.Linear:
    """An output layer."""
    return nn.Linear(inputs, UNITS)


def mlp(*middle: nn.Module) -> nn.Sequential:
    """A small network with something in its middle."""
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), *middle, head())


def conv(*middle: nn.Module, channels: int = 8, area: int = 36) -> nn.Sequential:
    """A small convolutional network with something in its middle."""
    body = nn.Sequential(nn.Conv2d(3, 8, 3), *middle, nn.ReLU(), nn.Flatten())
    return nn.Sequential(body, head(channels * area))


FIXED: dict[str, Any] = {"classes": range(5)}


def wide() -> nn.Linear:
    """An output layer with a unit for each of the five classes."""
    return nn.Linear(16, 5)


def _centres(*shape: int) -> Tensor:
    return torch.randn(5, *shape, generator=torch.Generator().manual_seed(99))


def vectors(y: Tensor, generator: torch.Generator) -> Tensor:
    """Vectors of six numbers."""
    return _centres(6)[y] * 2 + torch.randn(len(y), 6, generator=generator) / 2


def images(y: Tensor, generator: torch.Generator) -> Tensor:
    """Images of 3 × 8 × 8 bytes."""
    coarse = (_centres(3, 4, 4).sigmoid() * 200).repeat_interleave(2, -1).repeat_interleave(2, -2)
    noise = torch.rand(len(y), 3, 8, 8, generator=generator) * 50
    return (coarse[y] + noise).to(torch.uint8)


def sequences(y: Tensor, generator: torch.Generator) -> Tensor:
    """Sequences of eight vectors of four numbers."""
    return _centres(8, 4)[y] + torch.randn(len(y), 8, 4, generator=generator) / 3


def tokens(y: Tensor, generator: torch.Generator) -> Tensor:
    """Eight tokens of a vocabulary of thirty; a class prefers six of them."""
    own = y.unsqueeze(1) * 6 + torch.randint(0, 6, (len(y), 8), generator=generator)
    other = torch.randint(0, 30, (len(y), 8), generator=generator)
    return torch.where(torch.rand(len(y), 8, generator=generator) < 0.8, own, other).float()


INPUTS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "vectors": vectors,
    "images": images,
    "sequences": sequences,
    "tokens": tokens,
}


def stream(fed: str, batches: int, *, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of ten, with three classes in the first third and all five later."""
    generator = torch.Generator().manual_seed(seed)
    for batch in range(batches):
        classes = 3 if 3 * batch < batches else 5
        y = torch.randint(0, classes, (10,), generator=generator)
        yield INPUTS[fed](y, generator), y
