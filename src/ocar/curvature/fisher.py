r"""Square roots of the Fisher information of a model's own predictions.

The Fisher of one sample with outputs f is JᵀMJ, where J = ∂f/∂w and M is small:
diag(p) − ppᵀ for a categorical distribution with probabilities p, I/σ² for a
Gaussian, (ν + 1)/(ν + 3) · I/σ² for a Student-t distribution. A *root* of M is
a set of columns u_c with Σ_c u_c u_cᵀ = M, exactly or in expectation. Each column
costs one backward pass through the network. Columns are stacked in a tensor of
shape ``(columns, n, outputs)`` and pulled back together.

Every root is the square root S of M times vectors v with E[Σ v vᵀ] = I. So
the choice of v defines a root:

==================  =====================================================  ==========
root                vectors                                                columns
==================  =====================================================  ==========
``exact``           every basis vector                                     outputs
``sketched(r)``     r vectors of random signs, divided by √r               r
``sampled(m)``      m labels drawn from the prediction                     m
``top(m)``          the m likeliest classes, and one drawn from the rest   m + 1
``empirical``       the true label (not the Fisher: for comparison)        1
==================  =====================================================  ==========

K-FAC, and with it OCAR and NGD, uses ``sketched(2)`` by default: the cheapest root that seems to
cost no accuracy on Split-CIFAR100. The guide "Your own model" has the numbers.

**Two targets.** If samples do not interact, all roots but ``empirical`` are
unbiased for the same matrix. BatchNorm in train mode couples the samples of a
batch: the output of a sample depends on the inputs of the others. A column then
leaves Σ_j J_jiᵀ u_j at sample i, and there are two targets:

* ``coupled``: Σ_c (Σ_j J_jiᵀ u_jc)(Σ_j J_jiᵀ u_jc)ᵀ, with the cross-sample terms
  of a class-by-class backward pass over a batch. The authors of OCAR compute
  this target. ``exact`` and ``sketched(r)`` have it, since the whole batch
  shares their vectors.
* ``independent``: Σ_j J_jiᵀ M_j J_ji, without the cross-sample terms: the Fisher
  of predictions drawn independently. ``exact(independent)``,
  ``sketched(r, independent)``, ``sampled(m)`` and ``top(m)`` have it.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import ClassVar

import torch
from torch import Tensor

from ocar.errors import ConfigError, InputError


class Likelihood(ABC):
    """The distribution that the outputs of the model describe, one a sample.

    Args:
        outputs: Shape ``(n, outputs)``.
        most: Only this many first outputs have a basis vector; None for all.
    """

    def __init__(self, outputs: Tensor, *, most: int | None = None) -> None:
        # Half-precision outputs (autocast) are too coarse for probabilities.
        self.outputs = outputs.detach().to(torch.promote_types(outputs.dtype, torch.float32))
        self.most = most

    def basis(self) -> Tensor:
        """The basis vectors that matter, ``(columns, outputs)``."""
        size = self.outputs.shape[1]
        return torch.eye(size, dtype=self.outputs.dtype, device=self.outputs.device)[: self.most]

    @abstractmethod
    def root(self, vectors: Tensor) -> Tensor:
        """S·v for vectors ``(columns, n or 1, outputs)``: shape ``(columns, n, outputs)``."""

    @abstractmethod
    def sampled(self, draws: int, generator: torch.Generator) -> Tensor:
        """Scores of labels drawn from the prediction, ``(draws, n, outputs)``."""

    @abstractmethod
    def score(self, targets: Tensor) -> Tensor:
        """The score ∂ log p(target) / ∂ outputs, ``(..., n, outputs)`` for targets ``(..., n)``."""


class Categorical(Likelihood):
    """Softmax over the outputs, with the inactive ones left out.

    Args:
        outputs: Logits, ``(n, classes)``.
        active: Which classes exist, ``(classes,)`` of bool; all by default. Another class has
            probability 0, and so a column of zeros: to leave it out would mean to wait for a
            device.
        most: Only this many first outputs can stand for a class; None for all.
    """

    def __init__(
        self, outputs: Tensor, active: Tensor | None = None, *, most: int | None = None
    ) -> None:
        super().__init__(outputs, most=most)
        logits = self.outputs
        if active is not None:
            logits = logits.masked_fill(~active, float("-inf"))
        self.probabilities = logits.softmax(dim=-1)

    def root(self, vectors: Tensor) -> Tensor:
        """S = diag(√p) − p√pᵀ, which has SSᵀ = diag(p) − ppᵀ."""
        p = self.probabilities
        scaled = p.sqrt() * vectors
        return scaled - p * scaled.sum(dim=-1, keepdim=True)

    def sampled(self, draws: int, generator: torch.Generator) -> Tensor:
        """Columns e_y − p with y drawn from p."""
        # A prediction that is NaN may be drawn as anything: its columns stay NaN.
        p = self.probabilities.nan_to_num(nan=1.0)
        labels = p.multinomial(draws, replacement=True, generator=generator)
        return self.score(labels.T)

    def score(self, targets: Tensor) -> Tensor:
        """e_y − p."""
        hot = torch.nn.functional.one_hot(targets, self.outputs.shape[1])
        return hot.to(self.outputs.dtype) - self.probabilities


class Gaussian(Likelihood):
    """Independent normal distributions around the outputs, variance σ².

    With σ² = 1 the Fisher is that of the loss ½‖f − y‖², with σ² = ½ that of ‖f − y‖².

    Args:
        outputs: Means, ``(n, outputs)``.
        variance: σ²: a number, or one for each output, ``(outputs,)``.
    """

    def __init__(self, outputs: Tensor, variance: Tensor | float = 1.0) -> None:
        super().__init__(outputs)
        self.deviation = variance**0.5

    def root(self, vectors: Tensor) -> Tensor:
        """S = I/σ."""
        return (vectors / self.deviation).expand(-1, *self.outputs.shape)

    def sampled(self, draws: int, generator: torch.Generator) -> Tensor:
        """(y − f)/σ² with y drawn from the prediction."""
        noise = self.outputs.new_empty(draws, *self.outputs.shape).normal_(generator=generator)
        return noise / self.deviation

    def score(self, targets: Tensor) -> Tensor:
        """(y − f)/σ²."""
        return (targets.to(self.outputs.dtype) - self.outputs) / self.deviation**2


class StudentT(Likelihood):
    """Independent Student-t distributions around the outputs, with scale σ.

    Args:
        outputs: Locations, ``(n, outputs)``.
        variance: σ²: a number, or one for each output, ``(outputs,)``.
        degrees_of_freedom: ν.
    """

    def __init__(
        self, outputs: Tensor, variance: Tensor | float = 1.0, degrees_of_freedom: float = 5.0
    ) -> None:
        super().__init__(outputs)
        self.variance = variance
        self.degrees_of_freedom = degrees_of_freedom

    def root(self, vectors: Tensor) -> Tensor:
        """S = √((ν + 1)/(ν + 3)) I/σ."""
        degrees = self.degrees_of_freedom
        information = (degrees + 1) / (degrees + 3) / self.variance
        return (vectors * information**0.5).expand(-1, *self.outputs.shape)

    def sampled(self, draws: int, generator: torch.Generator) -> Tensor:
        """The scores of y drawn from the prediction.

        Bailey, "Polar generation of random variates with the t-distribution" (1994):
        √(ν (u^(−2/ν) − 1)) cos(2πv) with u and v uniform, which needs no gamma variates.
        """
        shape = (2, draws, *self.outputs.shape)
        u, v = self.outputs.new_empty(shape).uniform_(generator=generator)
        degrees = self.degrees_of_freedom
        radius = (degrees * ((1 - u) ** (-2 / degrees) - 1)).sqrt()
        return self._score(radius * torch.cos(2 * math.pi * v) * self.variance**0.5)

    def score(self, targets: Tensor) -> Tensor:
        """(ν + 1)(y − f) / (νσ² + (y − f)²)."""
        return self._score(targets.to(self.outputs.dtype) - self.outputs)

    def _score(self, residuals: Tensor) -> Tensor:
        degrees = self.degrees_of_freedom
        return (degrees + 1) * residuals / (degrees * self.variance + residuals.square())


@dataclass(frozen=True)
class FisherRoot(ABC):
    """A way to choose the columns; ``str()`` gives the text that :func:`parse_root` takes.

    Its fields are what the text has in parentheses: a number, and the word of a flag that is set.
    """

    grows: ClassVar[bool] = False
    """Whether there are more columns for more classes."""

    def __post_init__(self) -> None:
        if any(value < 1 for value in vars(self).values() if value is not False):
            raise ConfigError(f"Invalid fisher={str(self)!r}. The number must be at least 1.")

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self)]
        shown = [
            name if value is True else str(value) for name, value in given if value is not False
        ]
        return type(self).__name__.lower() + (f"({', '.join(shown)})" if shown else "")

    @abstractmethod
    def columns(
        self, likelihood: Likelihood, generator: torch.Generator, targets: Tensor | None = None
    ) -> Tensor:
        """The columns for one batch, ``(columns, n, outputs)``."""


@dataclass(frozen=True)
class Exact(FisherRoot):
    """All columns: as many backward passes as outputs, batched.

    With ``independent`` each sample has columns of its own, n times as many: the
    reference for the independent target.
    """

    grows = True

    independent: bool = field(default=False, kw_only=True)

    def columns(
        self, likelihood: Likelihood, generator: torch.Generator, targets: Tensor | None = None
    ) -> Tensor:
        """One column a class, or one a class and sample."""
        columns = likelihood.root(likelihood.basis().unsqueeze(1))
        return separate(columns) if self.independent else columns


@dataclass(frozen=True)
class Sketched(FisherRoot):
    """Random sign combinations of the exact columns.

    The signs are shared by the batch, or drawn for each sample with ``independent``.
    """

    size: int
    independent: bool = field(default=False, kw_only=True)

    def columns(
        self, likelihood: Likelihood, generator: torch.Generator, targets: Tensor | None = None
    ) -> Tensor:
        """``size`` columns, whatever the number of classes."""
        samples, outputs = likelihood.outputs.shape
        shape = (self.size, samples if self.independent else 1, outputs)
        return likelihood.root(random_signs(shape, likelihood.outputs, generator) / self.size**0.5)


@dataclass(frozen=True)
class Sampled(FisherRoot):
    """Labels drawn from the prediction, the usual Monte-Carlo Fisher."""

    draws: int = 1

    def columns(
        self, likelihood: Likelihood, generator: torch.Generator, targets: Tensor | None = None
    ) -> Tensor:
        """``draws`` columns."""
        return likelihood.sampled(self.draws, generator) / self.draws**0.5


@dataclass(frozen=True)
class Top(FisherRoot):
    """The likeliest classes of each sample exactly, and one drawn from the rest.

    A slot holds another class for each sample, so its columns get a random sign
    for each sample: the cross-sample terms, which would be meaningless, vanish
    in expectation.
    """

    classes: int

    def columns(
        self, likelihood: Likelihood, generator: torch.Generator, targets: Tensor | None = None
    ) -> Tensor:
        """``classes + 1`` columns; all classes when there are no more."""
        if not isinstance(likelihood, Categorical):
            raise ConfigError(
                f"fisher={str(self)!r} needs a categorical likelihood; "
                "use 'exact', 'sketched(r)' or 'sampled(m)' in a regression."
            )
        p = likelihood.probabilities
        count = min(self.classes, p.shape[1])
        order = p.topk(count, dim=-1).indices
        tail = p.scatter(-1, order, 0.0)
        mass = tail.sum(-1, keepdim=True)
        # Without any tail the draw does not matter: its column is zero.
        drawn = torch.where(mass > 0, tail, 1.0).multinomial(1, generator=generator)
        labels = torch.cat([order, drawn], dim=-1).T
        scale = torch.cat([p.gather(-1, order), mass], dim=-1).T.sqrt()
        signs = random_signs(scale.shape, p, generator)
        return likelihood.score(labels) * (scale * signs).unsqueeze(-1)


@dataclass(frozen=True)
class Empirical(FisherRoot):
    """The gradient of the true labels, which is not the Fisher; for comparison."""

    def columns(
        self, likelihood: Likelihood, generator: torch.Generator, targets: Tensor | None = None
    ) -> Tensor:
        """One column."""
        if targets is None:
            raise InputError("fisher='empirical' needs the labels: update(outputs, targets=y).")
        return likelihood.score(targets).unsqueeze(0)


def separate(columns: Tensor) -> Tensor:
    """Give each sample columns of its own, zero for all others.

    From ``(columns, n, outputs)`` to ``(columns · n, n, outputs)``.
    """
    samples = columns.shape[1]
    eye = torch.eye(samples, dtype=columns.dtype, device=columns.device)
    return (columns.unsqueeze(1) * eye.unsqueeze(-1)).flatten(0, 1)


def random_signs(
    shape: tuple[int, ...] | torch.Size, like: Tensor, generator: torch.Generator
) -> Tensor:
    """Independent ±1 of ``like``'s dtype and device."""
    return like.new_empty(shape).bernoulli_(0.5, generator=generator).mul_(2).sub_(1)


_ROOTS = {kind.__name__.lower(): kind for kind in (Exact, Sketched, Sampled, Top, Empirical)}
_ROOT_TEXT = re.compile(r"(\w+)(?:\( *(?:(\d+)|(?:(\d+), *)?(independent)) *\))?")
_ALLOWED = (
    "'exact', 'exact(independent)', 'sketched(r)', 'sketched(r, independent)', "
    "'sampled(m)', 'top(m)', 'empirical'"
)


def parse_root(text: str | FisherRoot) -> FisherRoot:
    """The root that a text like ``"sketched(2)"`` names.

    Raises:
        ConfigError: The text names no root.
    """
    if isinstance(text, FisherRoot):
        return text
    match = _ROOT_TEXT.fullmatch(text.strip())
    name, alone, first, independent = match.groups() if match else ("",) * 4
    numbers = [int(number) for number in (alone or first,) if number]
    flags = {"independent": True} if independent else {}
    try:
        root: FisherRoot = _ROOTS[name](*numbers, **flags)
    except (KeyError, TypeError):
        raise ConfigError(f"Invalid fisher={text!r}. Must be one of {_ALLOWED}.") from None
    return root
