"""The curvature of groups of layers: its statistics, their estimates, and the solve.

A kind of curvature consists of blocks. One :class:`Blocks` object holds all layers with the same
treatment, so that one operation can take all of them. This module has the base class and the blocks
that several kinds share. Other blocks are in the file of their kind.

The Kronecker factors of a layer are, with n samples and L locations,

* ``expand``: A = 1/n Σ_n Σ_l a aᵀ and G = 1/(nL) Σ_c Σ_n Σ_l g gᵀ, one term per location
  (for convolutions: Grosse & Martens 2016);
* ``reduce``: A = 1/n Σ_n ā āᵀ with ā the mean over locations, G = 1/n Σ_c Σ_n ĝ ĝᵀ with ĝ the sum
  over locations, one term per sample (Eschenhagen et al. 2023).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from ocar import accel
from ocar.accel import linalg
from ocar.curvature.layers import ONCE, DiagonalLayer, Layer, MatrixLayer, NormLayer, Use

Sharing = Literal["expand", "reduce"]

L = TypeVar("L", bound=Layer)


@dataclass(frozen=True, eq=False)
class Seen:
    """What one layer saw in a recorded forward pass and the pull-back of the Fisher's root."""

    x: Tensor  #: Input, ``(n, ...)``.
    g: Tensor  #: Output gradients with the sample weights in them, ``(columns, n, ...)``.
    #: Sample weights for the input side, ``(n,)``, with mean 1 over the batch; None for equal ones.
    weights: Tensor | None
    use: Use = ONCE  #: How the layer used its weight.
    others: tuple[Seen, ...] = ()  #: The other uses, if there were several.

    @property
    def uses(self) -> tuple[Seen, ...]:
        """All uses."""
        return self, *self.others

    def inputs(self, layer: MatrixLayer) -> Tensor:
        """What the weights of a layer were multiplied with, ``(n, groups, d_in, L)``."""
        return _joined([layer.inputs(one.x, one.use) for one in self.uses])

    def gradients(self, layer: MatrixLayer) -> Tensor:
        """The output gradients of a layer, ``(columns, n, own groups, d_out, L)``."""
        return _joined([layer.gradients(one.g, one.use) for one in self.uses])


def _joined(parts: list[Tensor]) -> Tensor:
    """The locations of all parts, the last dimension."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


@dataclass(frozen=True, kw_only=True)
class Head:
    """The layer that makes the outputs, some of which may stand for no class yet."""

    name: str
    #: How many outputs stand for a class, a scalar of int64; it is changed in place.
    active: Tensor


class Blocks(ABC, Generic[L]):
    """Layers whose curvature has the same form.

    Args:
        layers: The layers by name.
        sharing: How the locations of a layer with shared weights count.
        head: The layer that makes the outputs, if it is known.

    Attributes:
        buffer: The statistics, named ``layer.statistic``.
        ready: The layers that have an estimate.
    """

    about: ClassVar[str]  #: What they are, in two or three words.
    #: Statistics that are not estimated but set by :meth:`refresh`, and saved with the others.
    stored: ClassVar[tuple[str, ...]] = ()
    #: Statistics that are symmetric matrices ``(..., d, d)``; ranks send half of them.
    symmetric: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, layers: Mapping[str, L], *, sharing: Sharing = "expand", head: Head | None = None
    ) -> None:
        self.layers = dict(layers)
        self.sharing: Sharing = sharing
        self.head = head if head is not None and head.name in self.layers else None
        self.ready: set[str] = set()
        self.allocate()

    # What a kind of curvature implements

    def statistics(self, layer: L) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the statistics of a layer."""
        return layer.shapes()

    def estimate_inputs(self, seen: Mapping[str, Seen]) -> None:
        """Write those statistics of a batch into the estimates that need no gradients."""

    @abstractmethod
    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """Write the other statistics of a batch into the estimates."""

    @abstractmethod
    def prepare(self, damping: Tensor | float) -> Tensor:
        """Derive from the averages what :meth:`precondition_` needs.

        Returns:
            How many matrices have no inverse, a scalar of int64. Then the old inverses stay.
        """

    @abstractmethod
    def precondition_(self) -> None:
        """Rewrite the gradients of all layers that have one and have curvature."""

    @abstractmethod
    def eigenvalues(self, layer: L, damping: float) -> Tensor:
        """All eigenvalues of the damped curvature of a layer, ascending."""

    def share(self, ranks: accel.Ranks) -> None:
        """Share the inverses out over ranks; called before the first estimate."""

    def is_due(self, batches: int) -> bool:
        """Whether to :meth:`refresh` before a batch; there were so many ``batches`` before it."""
        return False

    def refresh(self) -> None:
        """Renew averages that are derived rarely; called before a batch, outside any recording."""

    def following(self) -> AbstractContextManager[None]:
        """A context for the forward pass of the loss."""
        return nullcontext()

    def restart_head(self, when: Tensor) -> None:
        """Where ``when`` is true, statistics of the head's outputs start again."""

    def _saved(self, name: str, average: Tensor, *, back: bool = False) -> Tensor:
        """A statistic in the order in which it is saved, or back again."""
        return average

    # Averages and inverses

    def renew(
        self, seen: Mapping[str, Seen], ema: Tensor | float, damping: Tensor | float
    ) -> Tensor:
        """Take the estimates of the layers ``seen`` into the averages, then :meth:`prepare`.

        Returns:
            Two scalars of bool in one tensor: whether the estimates are finite, and whether all
            inverses were found. If the estimates are not finite the averages stay.
        """
        names = self.estimated(seen)
        sums = [self.buffer.estimate(name).sum() for name in names]
        ok, rates = torch.stack(sums).sum().isfinite(), self._rates(ema)
        for name in names:
            average, estimate = self.buffer.average(name), self.buffer.estimate(name)
            rate = rates[self.buffer.index(name)].to(average.dtype)
            average.lerp_(torch.where(ok, estimate, average), rate)
        self._count(seen, ok)
        return torch.stack([ok, self.prepare(damping) == 0])

    def _rates(self, ema: Tensor | float) -> Tensor:
        """Weight of a new estimate of each statistic, float64; the first is taken whole."""
        counts = self.buffer.counts
        one = torch.ones((), dtype=torch.float64, device=counts.device)
        return torch.where(counts == 0, one, ema)

    def _count(self, seen: Mapping[str, Seen], ok: Tensor) -> None:
        """Count the estimates that were taken."""
        self.ready |= seen.keys()
        if len(seen) == len(self.layers):
            self.buffer.counts += ok
            return
        for name in self._names(seen):
            self.buffer.counts[self.buffer.index(name)] += ok

    def _restart(self, name: str, when: Tensor) -> None:
        """Take the next estimate of a statistic whole, where ``when`` is true."""
        self.buffer.counts[self.buffer.index(name)] *= ~when

    def _invert_averages(self, key: str, damping: Tensor | float) -> Tensor:
        """Invert the damped averages of one statistic of each layer; see :meth:`prepare`."""
        inverses = self.buffer.derived.setdefault("inverses", {})
        failed = torch.zeros((), dtype=torch.int64, device=self.buffer.averages.device)
        for name in self.ready:
            average = self.buffer.average(f"{name}.{key}")
            inverse, bad = linalg.inverse(linalg.add_to_diagonal(average, damping))
            place = inverses.setdefault(name, torch.zeros_like(inverse))
            place.copy_(torch.where(bad, place, inverse))
            failed = failed + bad
            if accel.known(bad):
                reason = linalg.not_invertible(average, damping, name=str(self.layers[name]))
                self.buffer.derived["reason"] = reason
        return failed

    def _damp_averages(self, damping: Tensor | float) -> Tensor:
        """Add τ to all averages, for blocks that divide by them; see :meth:`prepare`."""
        place = self.buffer.derived.setdefault("damped", torch.empty_like(self.buffer.averages))
        torch.add(self.buffer.averages, damping, out=place)
        return torch.zeros((), dtype=torch.int64, device=place.device)

    def infinite(self) -> list[str]:
        """The layers whose last estimate was not finite."""
        known: list[str] | None = self.buffer.derived.pop("infinite", None)
        if known is not None:  # an operation that overwrites the estimates
            return known
        bad = [n for n in self._names(self.ready) if not self.buffer.estimate(n).isfinite().all()]
        return list(dict.fromkeys(name.rpartition(".")[0] for name in bad))

    # State

    def allocate(self) -> None:
        """Make an empty buffer, and whatever depends on the shapes of the statistics."""
        parameters = [p for layer in self.layers.values() for p in layer.parameters]
        dtype = torch.float32
        for parameter in parameters:
            dtype = torch.promote_types(dtype, parameter.dtype)
        like = torch.empty(0, dtype=dtype, device=parameters[0].device)
        shapes = self.shapes()
        symmetric = [name for name in shapes if name.rpartition(".")[2] in self.symmetric]
        self.buffer = accel.FactorBuffer(shapes, like=like, symmetric=symmetric)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the statistics of all layers as they are now, by name."""
        return {
            f"{name}.{key}": tuple(shape)
            for name, layer in self.layers.items()
            for key, shape in self.statistics(layer).items()
        }

    def _names(self, layers: Iterable[str]) -> list[str]:
        """The names of all statistics of some layers, in the order of the buffer."""
        chosen = set(layers)
        return [name for name in self.buffer.shapes if name.rpartition(".")[0] in chosen]

    def estimated(self, layers: Iterable[str]) -> list[str]:
        """The names of those statistics of some layers that are estimated."""
        return [n for n in self._names(layers) if n.rpartition(".")[2] not in self.stored]

    def fit(self) -> None:
        """Make room where a layer has got more outputs; their statistics start at zero."""
        old = self.buffer
        if self.shapes() == old.shapes:
            return
        self.allocate()
        self.buffer.counts.copy_(old.counts)
        for name, shape in self.buffer.shapes.items():
            average = old.average(name)
            missing = [new - was for new, was in zip(shape, average.shape, strict=True)]
            padding = [number for size in reversed(missing) for number in (0, size)]
            self.buffer.average(name).copy_(functional.pad(average, padding))

    def tensors(self) -> list[Tensor]:
        """What :meth:`renew` changes and a roll back has to restore."""
        return [self.buffer.averages, self.buffer.counts]

    def memory_usage(self) -> int:
        """Bytes of the averages and of what is derived from them."""
        tensors = [self.buffer.averages, self.buffer.estimates, *_tensors_in(self.buffer.derived)]
        return sum(t.numel() * t.element_size() for t in tensors)

    def state(self) -> dict[str, Tensor]:
        """Averages and counts of the layers that have an estimate, in a portable order."""
        names, counts = self._names(self.ready), self.buffer.counts
        state = {name: self._saved(name, self.buffer.average(name)) for name in names}
        return state | {f"{name}.count": counts[self.buffer.index(name)] for name in names}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take what :meth:`state` gave, once its names and shapes are checked."""
        self.fit()
        self.buffer.averages.zero_()
        self.buffer.counts.zero_()
        self.buffer.derived.clear()
        self.ready = {layer_of(name) for name in state}
        for name in self._names(self.ready):
            saved = state[name].to(self.buffer.averages)
            self.buffer.average(name).copy_(self._saved(name, saved, back=True))
            self.buffer.counts[self.buffer.index(name)] = state[f"{name}.count"]


def layer_of(statistic: str) -> str:
    """The layer of a statistic, or of its count, in a state."""
    return statistic.removesuffix(".count").rpartition(".")[0]


def _tensors_in(thing: object) -> Iterator[Tensor]:
    """All tensors in dictionaries, sequences and objects."""
    values: Iterable[object] = ()
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        values = thing.values()
    elif isinstance(thing, (list, tuple)):
        values = thing
    elif hasattr(thing, "__dict__"):
        values = vars(thing).values()
    for value in values:
        yield from _tensors_in(value)


class UnitBlocks(Blocks[NormLayer]):
    """A small matrix for each unit of a normalisation layer: its scale and its shift."""

    about = "block a unit"
    symmetric = ("F",)

    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """1/n Σ_c Σ_n s sᵀ for each unit, s the score of its trainable parameters."""
        for name, own in seen.items():
            scores = [self.layers[name].scores(one.x, one.g) for one in own.uses]
            s = torch.stack(scores).sum(0) if len(scores) > 1 else scores[0]
            moment = torch.einsum("cnui,cnuj->uij", s, s) / s.shape[1]
            self.buffer.estimate(f"{name}.F").copy_(moment)

    def prepare(self, damping: Tensor | float) -> Tensor:
        """Invert the damped matrices."""
        return self._invert_averages("F", damping)

    def precondition_(self) -> None:
        """Multiply the gradients of each unit with its inverse."""
        for name, inverse in self.buffer.derived.get("inverses", {}).items():
            layer = self.layers[name]
            if layer.has_gradient:
                grads = [p.grad for p in layer.parameters if p.grad is not None]
                stacked = torch.stack([grad.flatten() for grad in grads], dim=-1).to(inverse.dtype)
                result = (inverse @ stacked.unsqueeze(-1)).squeeze(-1)
                for grad, new in zip(grads, result.unbind(-1), strict=True):
                    grad.copy_(new.view_as(grad))

    def eigenvalues(self, layer: NormLayer, damping: float) -> Tensor:
        """Eigenvalues of every unit's matrix."""
        values, _ = linalg.eigen(self.buffer.average(f"{layer.name}.F"), name=layer.name)
        return (values + damping).flatten().sort().values


class DiagonalBlocks(Blocks[DiagonalLayer]):
    """One number for each weight, of embeddings and of what is added to all samples."""

    about = "diagonal"

    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """The diagonal of the Fisher."""
        for name, own in seen.items():
            called = [(one.x, one.g) for one in own.uses]
            self.buffer.estimate(f"{name}.F").copy_(self.layers[name].diagonal_of(called))

    def prepare(self, damping: Tensor | float) -> Tensor:
        """Nothing is derived but the damped averages."""
        return self._damp_averages(damping)

    def precondition_(self) -> None:
        """Divide each gradient by its number."""
        for name in self.ready:
            grad = self.layers[name].weight.grad
            if grad is not None:
                damped = self.buffer.view(self.buffer.derived["damped"], f"{name}.F")
                grad.div_(damped.to(grad.dtype))

    def eigenvalues(self, layer: DiagonalLayer, damping: float) -> Tensor:
        """The damped diagonal."""
        return (self.buffer.average(f"{layer.name}.F") + damping).flatten().sort().values
