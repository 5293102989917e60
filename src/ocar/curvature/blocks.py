"""The curvature of groups of layers: which statistics, how they are estimated, how they solve.

A kind of curvature is made of blocks. One :class:`Blocks` object holds all layers that are treated
in the same way, so that an operation can take all of them at once.

* :class:`KroneckerBlocks`: A ⊗ G, for linear layers and convolutions
* :class:`ExactKroneckerBlocks`: the same, with A ⊗ G + τI inverted exactly
* :class:`UnitBlocks`: one small matrix for each unit, for normalisation layers
* :class:`DiagonalBlocks`: one number for each weight, for embeddings

The Kronecker factors of a layer are, with n samples and L locations,

* ``expand``: A = 1/n Σ_n Σ_l a aᵀ and G = 1/(nL) Σ_c Σ_n Σ_l g gᵀ, each location a term of its own
  (for convolutions: Grosse & Martens 2016);
* ``reduce``: A = 1/n Σ_n ā āᵀ with ā the mean over locations, G = 1/n Σ_c Σ_n ĝ ĝᵀ with ĝ the sum
  over them, each sample one term (Eschenhagen et al. 2023).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from ocar import accel
from ocar.accel import linalg
from ocar.curvature.layers import EmbeddingLayer, Layer, MatrixLayer, NormLayer
from ocar.errors import CheckpointError

Sharing = Literal["expand", "reduce"]

L = TypeVar("L", bound=Layer)


@dataclass(frozen=True, eq=False)
class Seen:
    """What one layer saw in a recorded forward pass and the pull-back of the Fisher's root."""

    x: Tensor
    """Input, ``(n, ...)``."""

    g: Tensor
    """Output gradients with the sample weights in them, ``(columns, n, ...)``."""

    weights: Tensor | None
    """Sample weights for the input side, ``(n,)``; None for equal ones."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The layer that makes the outputs, some of which may stand for no class yet."""

    name: str
    """Name of the layer."""

    active: Tensor
    """How many outputs stand for a class, a scalar of int64; it is changed in place."""


class Blocks(ABC, Generic[L]):
    """Layers whose curvature has the same form.

    Args:
        layers: The layers by name.
        sharing: How the locations of a layer with shared weights count.
        head: The layer that makes the outputs, if it is known.

    Attributes:
        buffer: The statistics, named ``layer.statistic``.
    """

    def __init__(
        self, layers: Mapping[str, L], *, sharing: Sharing = "expand", head: Head | None = None
    ) -> None:
        self.layers = dict(layers)
        self.sharing: Sharing = sharing
        self.head = head if head is not None and head.name in self.layers else None
        self.ready: set[str] = set()
        """Layers that have an estimate."""
        self.buffer = self._new_buffer()

    def statistics(self, layer: L) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the statistics of a layer."""
        return layer.shapes()

    stored: ClassVar[tuple[str, ...]] = ()
    """Statistics that are not estimated but set by :meth:`refresh`, and saved with the others."""

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

    def refresh(self, batches: int) -> None:
        """Called before each batch, outside any recording: for what is derived rarely.

        Args:
            batches: How many batches there were before.
        """

    def following(self) -> AbstractContextManager[None]:
        """A context for the forward pass of the loss."""
        return nullcontext()

    def infinite(self) -> list[str]:
        """The layers whose last estimate was not finite."""
        names = [name for name in self.buffer.shapes if name.rpartition(".")[0] in self.ready]
        bad = (n for n in names if not bool(self.buffer.estimate(n).isfinite().all()))
        return list(dict.fromkeys(name.rpartition(".")[0] for name in bad))

    def renew(
        self, seen: Mapping[str, Seen], ema: Tensor | float, damping: Tensor | float
    ) -> Tensor:
        """Take the estimates into the averages, then :meth:`prepare`.

        Args:
            seen: The layers that have an estimate.
            ema: Weight of a new estimate.
            damping: τ.

        Returns:
            Two scalars of bool in one tensor: whether the estimates are finite, and whether all
            inverses were found. If the estimates are not finite the averages stay.
        """
        names = [
            f"{layer}.{key}"
            for layer in seen
            for key in self.statistics(self.layers[layer])
            if key not in self.stored
        ]
        sums = [self._total(self.buffer.estimate(name)) for name in names]
        ok, rates = torch.stack(sums).sum().isfinite(), self._rates(ema)
        for name in names:
            average, estimate = self.buffer.average(name), self.buffer.estimate(name)
            rate = rates[self.buffer.index(name)].to(average.dtype)
            average.lerp_(torch.where(ok, estimate, average), rate)
        self._count(seen, ok)
        return torch.stack([ok, self.prepare(damping) == 0])

    def _total(self, estimate: Tensor) -> Tensor:
        """A number that is finite only if all of a statistic is."""
        return estimate.sum()

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
        for name in seen:
            for key in self.statistics(self.layers[name]):
                self.buffer.counts[self.buffer.index(f"{name}.{key}")] += ok

    def restart_head(self, when: Tensor) -> None:
        """Where ``when`` is true, statistics of the head's outputs start again."""

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
                about = f"layer {name!r}"
                self.buffer.derived["reason"] = linalg.not_invertible(average, damping, name=about)
        return failed

    # State

    def tensors(self) -> list[Tensor]:
        """What :meth:`renew` changes and a roll back has to restore."""
        return [self.buffer.averages, self.buffer.counts]

    def memory_usage(self) -> int:
        """Bytes of the averages and of what is derived from them."""
        tensors = [self.buffer.averages, self.buffer.estimates, *_tensors_in(self.buffer.derived)]
        return sum(t.numel() * t.element_size() for t in tensors)

    def fit(self) -> None:
        """Make room where a layer has got more outputs; their statistics start at zero."""
        old = self.buffer
        shapes = self._shapes()
        if shapes == old.shapes:
            return
        self.buffer = self._new_buffer()
        self.buffer.counts.copy_(old.counts)
        for name, shape in shapes.items():
            average, place = old.average(name), self.buffer.average(name)
            missing = [new - was for new, was in zip(shape, average.shape, strict=True)]
            padding = [number for size in reversed(missing) for number in (0, size)]
            place.copy_(functional.pad(average, padding))

    def state(self) -> dict[str, Tensor]:
        """Averages and counts of the layers that have an estimate, in a portable order."""
        names = [
            f"{layer}.{key}" for layer in self.layers if layer in self.ready
            for key in self.statistics(self.layers[layer])
        ]  # fmt: skip
        counts = self.buffer.counts
        state = {name: self._saved(name, self.buffer.average(name)) for name in names}
        return state | {f"{name}.count": counts[self.buffer.index(name)] for name in names}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take what :meth:`state` gave and :meth:`check_state` has checked."""
        self.fit()
        self.buffer.averages.zero_()
        self.buffer.counts.zero_()
        given = [name for name in self.buffer.shapes if name in state]
        for name in given:
            saved = state[name].to(self.buffer.averages)
            self.buffer.average(name).copy_(self._saved(name, saved, back=True))
            self.buffer.counts[self.buffer.index(name)] = state[f"{name}.count"]
        self.buffer.derived.clear()
        self.ready = {name.rpartition(".")[0] for name in given}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise if a state does not fit.

        Raises:
            CheckpointError: A statistic or its count is missing, unknown or of another shape.
        """
        known: dict[str, tuple[int, ...]] = {}
        for name, shape in self._shapes().items():
            known |= {name: tuple(shape), f"{name}.count": ()}
        given = {name: tuple(t.shape) for name, t in state.items()}
        wrong = {name: shape for name, shape in given.items() if known.get(name) != shape}
        layers = {_layer_of(name) for name in given}
        missing = [n for n in known if _layer_of(n) in layers and n not in given]
        if wrong or missing:
            raise CheckpointError(
                f"The checkpoint has other curvature: {wrong or missing}. "
                f"Here: { ({n: known.get(n) for n in wrong or missing}) }."
            )

    def _saved(self, name: str, average: Tensor, *, back: bool = False) -> Tensor:
        """A statistic in the order in which it is saved, or back again."""
        return average

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            f"{name}.{key}": shape
            for name, layer in self.layers.items()
            for key, shape in self.statistics(layer).items()
        }

    def _new_buffer(self) -> accel.FactorBuffer:
        parameters = [p for layer in self.layers.values() for p in layer.parameters]
        dtype = torch.float32
        for parameter in parameters:
            dtype = torch.promote_types(dtype, parameter.dtype)
        like = torch.empty(0, dtype=dtype, device=parameters[0].device)
        return accel.FactorBuffer(self._shapes(), like=like)


def _layer_of(statistic: str) -> str:
    """The layer of a statistic, or of its count, in a state."""
    return statistic.removesuffix(".count").rpartition(".")[0]


def _tensors_in(thing: object) -> Iterator[Tensor]:
    """All tensors in dictionaries, sequences and objects."""
    if isinstance(thing, Tensor):
        yield thing
        return
    values: Iterable[object] = ()
    if isinstance(thing, Mapping):
        values = thing.values()
    elif isinstance(thing, (list, tuple)):
        values = thing
    elif hasattr(thing, "__dict__"):
        values = vars(thing).values()
    for value in values:
        yield from _tensors_in(value)


class KroneckerBlocks(Blocks[MatrixLayer]):
    """A ⊗ G for linear layers and convolutions, each factor damped, balanced by π."""

    def __init__(
        self,
        layers: Mapping[str, MatrixLayer],
        *,
        sharing: Sharing = "expand",
        head: Head | None = None,
    ) -> None:
        super().__init__(layers, sharing=sharing, head=head)
        modules = {name: layer.module for name, layer in layers.items()}
        self.rows = accel.RowRecorder(modules)
        self._make_tables()

    def _make_tables(self) -> None:
        self._pairs = {
            name: accel.Pair(name, layer.groups, layer.d_in, layer.d_out, layer.is_linear)
            for name, layer in self.layers.items()
        }
        like = self.buffer.averages
        sizes = [shape[-1] for shape in self.buffer.shapes.values()]
        self._dims = torch.tensor(sizes, dtype=like.dtype, device=like.device)

    def fit(self) -> None:
        """Make room where a layer has got more outputs."""
        before = self.buffer
        super().fit()
        if self.buffer is not before:
            self._make_tables()

    def following(self) -> AbstractContextManager[None]:
        """Record the rows of linear layers where that makes :meth:`precondition_` faster."""
        return self.rows.recording()

    def infinite(self) -> list[str]:
        """The layers whose last estimate was not finite."""
        names: list[str] | None = self.buffer.derived.pop("infinite", None)
        return super().infinite() if names is None else names

    def estimate_inputs(self, seen: Mapping[str, Seen]) -> None:
        """A of a batch."""
        operands = [partial(self._inputs, self.layers[n], s.x, s.weights) for n, s in seen.items()]
        scales = [1 / s.x.shape[0] for s in seen.values()]
        accel.gram(operands, scales, [self.buffer.estimate(f"{name}.A") for name in seen])

    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """G of a batch."""
        gradients = [self._gradients(self.layers[name], s.g) for name, s in seen.items()]
        scales = [1 / (g.shape[1] * g.shape[-1]) for g in gradients]
        operands = [partial(torch.flatten, g, 0, 1) for g in gradients]
        accel.gram(operands, scales, [self.buffer.estimate(f"{name}.G") for name in seen])

    def _inputs(self, layer: MatrixLayer, x: Tensor, weights: Tensor | None) -> Tensor:
        a = layer.inputs(x)
        if self.sharing == "reduce":
            a = a.mean(-1, keepdim=True)
        if weights is not None:
            a = a * (weights * (len(weights) / weights.sum())).sqrt().view(-1, 1, 1, 1)
        return a

    def _gradients(self, layer: MatrixLayer, g: Tensor) -> Tensor:
        g = layer.gradients(g)
        return g.sum(-1, keepdim=True) if self.sharing == "reduce" else g

    def renew(
        self, seen: Mapping[str, Seen], ema: Tensor | float, damping: Tensor | float
    ) -> Tensor:
        """Average, damp and invert all factors."""
        pairs = tuple(self._pairs[name] for name in self.layers if name in seen)
        rates = self._rates(ema)
        ok = accel.mix_and_damp(self.buffer, pairs, rates, self._current_dims(), damping)
        self._count(seen, ok)
        return torch.stack([ok, accel.invert(self.buffer, pairs) == 0])

    def _current_dims(self) -> Tensor:
        """The dimension of each factor; of the head's G only outputs that stand for a class."""
        if self.head is not None:
            self._dims[self.buffer.index(f"{self.head.name}.G")].copy_(self.head.active)
        return self._dims

    def restart_head(self, when: Tensor) -> None:
        """The head's G starts again; its A goes on."""
        if self.head is not None:
            self._restart(f"{self.head.name}.G", when)

    def prepare(self, damping: Tensor | float) -> Tensor:
        """Damp and invert the averages as they are."""
        pairs = tuple(self._pairs[name] for name in self.layers if name in self.ready)
        self.buffer.estimates.copy_(self.buffer.averages)
        rates = torch.ones(len(self.buffer.shapes), dtype=torch.float64, device=self._dims.device)
        accel.mix_and_damp(self.buffer, pairs, rates, self._current_dims(), damping)
        return accel.invert(self.buffer, pairs)

    def precondition_(self) -> None:
        """Multiply the gradients with the inverses of A and G."""
        layers = {n: m for n, m in self.layers.items() if n in self.ready and m.has_gradient}
        if not layers:
            return
        results = accel.precondition(
            self.buffer,
            tuple(self._pairs[name] for name in layers),
            [layer.gradient for layer in layers.values()],
            [self.rows.rows(name) for name in layers],
        )
        for layer, result in zip(layers.values(), results, strict=True):
            layer.replace_gradient(result)

    def eigenvalues(self, layer: MatrixLayer, damping: float) -> Tensor:
        """Products of the eigenvalues of A and G, each damped."""
        values_a, values_g = self._factor_eigenvalues(layer)
        mean_a, mean_g = values_a.sum(-1) / layer.d_in, values_g.mean(-1)
        balanced = (mean_a > 0) & (mean_g > 0)
        pi = torch.where(balanced, mean_a / mean_g, 1.0).sqrt().unsqueeze(-1)
        values_a, values_g = values_a + pi * damping**0.5, values_g + damping**0.5 / pi
        return (values_g.unsqueeze(-1) * values_a.unsqueeze(-2)).flatten().sort().values

    def _factor_eigenvalues(self, layer: MatrixLayer) -> tuple[Tensor, Tensor]:
        values_a, _ = linalg.eigen(self.buffer.average(f"{layer.name}.A"), name=layer.name)
        values_g, _ = linalg.eigen(self.buffer.average(f"{layer.name}.G"), name=layer.name)
        if self.head is not None and layer.name == self.head.name:
            # Spare outputs have zero curvature and come first in ascending order.
            values_g = values_g[:, values_g.shape[1] - int(self.head.active) :]
        return values_a, values_g

    def _saved(self, name: str, average: Tensor, *, back: bool = False) -> Tensor:
        layer, _, key = name.rpartition(".")
        return self.layers[layer].to_saved(average, back=back) if key == "A" else average


class ExactKroneckerBlocks(KroneckerBlocks):
    """A ⊗ G + τI, inverted in the eigenbases of A and G; it cannot be recorded as a CUDA graph."""

    def renew(
        self, seen: Mapping[str, Seen], ema: Tensor | float, damping: Tensor | float
    ) -> Tensor:
        """Average the factors, then decompose them."""
        return Blocks.renew(self, seen, ema, damping)

    def _total(self, estimate: Tensor) -> Tensor:
        return estimate.diagonal(dim1=-2, dim2=-1).sum()  # the diagonal bounds the rest

    def prepare(self, damping: Tensor | float) -> Tensor:
        """Decompose the averages."""
        solved = self.buffer.derived.setdefault("solved", {})
        for name in self.ready:
            parts = (self.buffer.average(f"{name}.{key}") for key in ("A", "G"))
            (values_a, a), (values_g, g) = (linalg.eigen(p, name=f"layer {name!r}") for p in parts)
            solved[name] = a, g, values_g.unsqueeze(-1) * values_a.unsqueeze(-2) + damping
        bad = [(denominator <= 0).any() for _, _, denominator in solved.values()]
        return torch.stack(bad).sum()

    def precondition_(self) -> None:
        """Divide the gradients in the eigenbases."""
        for name, (a, g, denominator) in self.buffer.derived.get("solved", {}).items():
            layer = self.layers[name]
            if layer.has_gradient:
                rotated = g.mT @ layer.gradient().to(g.dtype) @ a / denominator
                layer.replace_gradient(g @ rotated @ a.mT)

    def eigenvalues(self, layer: MatrixLayer, damping: float) -> Tensor:
        """Products of the eigenvalues of A and G, damped."""
        values_a, values_g = self._factor_eigenvalues(layer)
        products = values_g.unsqueeze(-1) * values_a.unsqueeze(-2) + damping
        return products.flatten().sort().values


class UnitBlocks(Blocks[NormLayer]):
    """A small matrix for each unit of a normalisation layer: its scale and its shift."""

    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """1/n Σ_c Σ_n s sᵀ for each unit, s the score of its trainable parameters."""
        for name, own in seen.items():
            s = self.layers[name].scores(own.x, own.g)
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


class DiagonalBlocks(Blocks[EmbeddingLayer]):
    """One number for each weight of an embedding."""

    def estimate(self, seen: Mapping[str, Seen]) -> None:
        """The diagonal of the Fisher."""
        for name, own in seen.items():
            self.buffer.estimate(f"{name}.F").copy_(self.layers[name].diagonal(own.x, own.g))

    def prepare(self, damping: Tensor | float) -> Tensor:
        """Nothing is derived but the damped averages."""
        place = self.buffer.derived.setdefault("damped", torch.empty_like(self.buffer.averages))
        torch.add(self.buffer.averages, damping, out=place)
        return torch.zeros((), dtype=torch.int64, device=self.buffer.averages.device)

    def precondition_(self) -> None:
        """Divide each gradient by its number."""
        for name in self.ready:
            grad = self.layers[name].module.weight.grad
            if grad is not None:
                damped = self.buffer.view(self.buffer.derived["damped"], f"{name}.F")
                grad.div_(damped.to(grad.dtype))

    def eigenvalues(self, layer: EmbeddingLayer, damping: float) -> Tensor:
        """The damped diagonal."""
        return (self.buffer.average(f"{layer.name}.F") + damping).flatten().sort().values
