"""Settings of the curvature, for every method that preconditions the gradient with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import nn

from ocar.config import require
from ocar.curvature import CURVATURES, Curvature
from ocar.curvature.fisher import parse_root
from ocar.curvature.selection import Patterns, as_names
from ocar.methods.transform import TransformSettings


@dataclass(frozen=True, kw_only=True)
class CurvatureSettings(TransformSettings):
    """Settings of a gradient that a curvature preconditions, for any objective with predictions."""

    needs_predictions = True

    curvature: str | Curvature = "kfac"
    """``"kfac"``, ``"ekfac"``, ``"foof"``, ``"dense"`` (the full Fisher, for tiny models), the name
    of a registered kind, or, from Python, an object such as ``EKFAC()``, whose own options are
    then used in place of those below."""

    fisher: str = "sketched(2)"
    """Root of the Fisher, see :mod:`ocar.curvature.fisher`."""

    fisher_passes: Literal["first", "every"] = "first"
    """Renew the curvature on the first pass over a stream batch, or on every pass."""

    fisher_forward: Literal["shared", "own"] = "shared"
    """Take the Fisher from the forward pass of the loss, or from one more, as the authors'
    code does (BatchNorm's running statistics then move once more)."""

    damping_kind: Literal["factored", "exact"] = "factored"
    """Damp each Kronecker factor, balanced by π (the authors' code), or add τ to the curvature (the
    text); for K-FAC and E-KFAC."""

    factor_scale: Literal["none", "outputs"] = "none"
    """Average A and G, or A·√K and G/√K with K units of the head (the authors' code). The two
    differ for a while after the head has grown. For K-FAC alone."""

    sharing: Literal["expand", "reduce"] = "expand"
    """How locations of a layer with shared weights count, see :mod:`ocar.curvature.blocks`."""

    norm_layers: bool = False
    """Precondition normalisation layers too."""

    exclude: Patterns = ()
    """Parameters that keep their plain gradient: names of parameters or modules, with ``*`` for
    anything, or classes of modules; see :mod:`ocar.curvature.selection`."""

    include: Patterns = ()
    """The only parameters that may have curvature, in the same form; by default all."""

    track_norms: bool = False
    """Report the ratio of gradient norms after and before."""

    max_cost: float | None = 1.5
    """Operations of the curvature divided by those of the gradient steps, counted from shapes. To
    keep to it, the curvature of wide layers is split, see :mod:`ocar.curvature.cost`; None for
    never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("exclude", "include"):
            object.__setattr__(self, name, as_names(getattr(self, name)))
        valid = self.max_cost is None or self.max_cost > 0
        require("max_cost", self.max_cost, valid, "larger than 0, or None for no bound")
        if isinstance(self.curvature, str):
            CURVATURES.find(self.curvature)
        parse_root(self.fisher)

    def bind_curvature(
        self, model: nn.Module, given: Mapping[str, Any], *options: str
    ) -> Curvature:
        """The preconditioner of a model.

        Args:
            model: The model that learns.
            given: What every kind of curvature takes.
            options: Fields of a subclass that a kind takes too if it has them, as those above.
        """
        if isinstance(self.curvature, Curvature):
            return self.curvature.bind(model, **given)
        kind = CURVATURES.find(self.curvature)
        taken = {field.name for field in fields(kind)} - given.keys()
        own = {name: getattr(self, name) for name in (*options, *_OPTIONS) if name in taken}
        return kind(model, **own, **given)


_OPTIONS = tuple(field.name for field in fields(CurvatureSettings))
