"""The settings of a curvature, which may have no model yet."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Literal, Self

from torch import Tensor, nn

from ocar.config import require_options, require_range
from ocar.curvature.fisher import (
    Categorical,
    FisherRoot,
    Gaussian,
    Likelihood,
    StudentT,
    parse_root,
)
from ocar.curvature.schedule import Schedule, check_schedule
from ocar.curvature.selection import Patterns, as_names


@dataclass(eq=False, repr=False)
class Specification:
    """A kind of curvature with its settings. Without a model, :meth:`bind` gives it one."""

    model: nn.Module = None  # type: ignore[assignment]
    """The model whose gradients are preconditioned; None for a specification."""

    _: KW_ONLY

    damping: Schedule = 1e-3
    """τ, a number or a function of the step."""

    ema: Schedule = 0.1
    """Weight of a new estimate in the moving average, in (0, 1]. The first is taken whole."""

    fisher: str | FisherRoot = "sketched(2)"
    """Root of the Fisher: ``"exact"``, ``"sketched(r)"``, ``"sampled(m)"``, ``"top(m)"`` or
    ``"empirical"``, see :mod:`ocar.curvature.fisher`."""

    likelihood: Literal["categorical", "gaussian", "student-t"] = "categorical"
    """``"categorical"`` for logits, ``"gaussian"`` or ``"student-t"`` for regression."""

    variance: float = 1.0
    """σ² of a Gaussian or Student-t likelihood."""

    degrees_of_freedom: float = 5.0
    """ν of a Student-t likelihood."""

    head: str | None = None
    """Name of the layer that makes the outputs; by default the last linear layer."""

    exclude: Patterns = ()
    """Parameters that keep their plain gradient: names of parameters or modules, with ``*`` for
    anything, or classes of modules; see :mod:`ocar.curvature.selection`."""

    include: Patterns = ()
    """The only parameters that may have curvature, in the same form; by default all."""

    track_norms: bool = False
    """Keep the ratio of gradient norms in ``norm_ratio``."""

    seed: int = 0
    """Seed of the random roots."""

    def __post_init__(self) -> None:
        require_options(self)
        check_schedule("damping", self.damping, "larger than 0", lambda v: 0 < v < float("inf"))
        check_schedule("ema", self.ema, "in (0, 1]", lambda v: 0 < v <= 1)
        require_range(self, "larger than 0", "variance", "degrees_of_freedom")
        self.exclude, self.include = as_names(self.exclude), as_names(self.include)
        self.root = parse_root(self.fisher)

    def distribution(
        self, outputs: Tensor, active: Tensor | None, variance: Tensor | None, *, most: int | None
    ) -> Likelihood:
        """What outputs ``(n, outputs)`` describe; see :meth:`Curvature.update`."""
        squares = self.variance if variance is None else variance
        if self.likelihood == "gaussian":
            return Gaussian(outputs, squares)
        if self.likelihood == "student-t":
            return StudentT(outputs, squares, self.degrees_of_freedom)
        return Categorical(outputs, active, most=most)

    def arguments(self) -> dict[str, Any]:
        """The arguments that make it again, without the model."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}

    def bind(self, model: nn.Module, **arguments: Any) -> Self:
        """The same kind of curvature for a model; ``arguments`` replace those it has."""
        return replace(self, model=model, **arguments)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        model = "" if self.model is None else f"{type(self.model).__name__}, "
        return f"{type(self).__name__}({model}{shown})"
