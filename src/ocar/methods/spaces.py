"""Search spaces: the ranges of each method's settings, as plain data.

``ocar tune`` and :func:`ocar.suggest` search these spaces. The space of a method has the learning
rate, the ranges of its loss and the ranges of its gradient transform. The tables are indexed by the
classes of settings, so any loss combines with any transform.

The ranges of the learning rate, Δτ, α_EMA and of the weights in ER-ACE, DER and DER++ are the
paper's. The other ranges are ours, around the published values: log-uniform over a decade or two to
either side, or uniform over all sensible values of a bounded setting. Settings without a range are
not searched. They keep the value of the benchmark's preset, or the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ocar.config import require
from ocar.methods.agem import AGEMSettings
from ocar.methods.der import DERPlusPlusSettings, DERSettings
from ocar.methods.distillation import SlowERSettings
from ocar.methods.er_ace import ERACESettings
from ocar.methods.ewc import EWCSettings
from ocar.methods.gdumb import GDumbSettings
from ocar.methods.lpr import LPRSettings
from ocar.methods.lwf import ERLwFSettings
from ocar.methods.mir import MIRSettings
from ocar.methods.ngd import NGDSettings
from ocar.methods.ocar import OCARSettings
from ocar.methods.ocm import OCMSettings
from ocar.methods.onpro import OnProSettings
from ocar.methods.rar import RARSettings
from ocar.methods.registry import METHODS, TRANSFORMS
from ocar.methods.scr import SCRSettings
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import TransformSettings


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers between two bounds, both included."""

    low: float
    high: float
    log: bool = False  #: Log-uniform instead of uniform.
    whole: bool = False  #: Integers only.

    def __post_init__(self) -> None:
        require("low", self.low, self.low < self.high, f"less than {self.high}")
        require("low", self.low, self.low > 0 or not self.log, "larger than 0 for log")

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of a few values."""

    values: tuple[float | str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        require("values", self.values, len(self.values) > 1, "two or more")

    def __contains__(self, value: object) -> bool:
        return value in self.values


Space = Mapping[str, Range | Choice]
"""Ranges and choices by the name of the setting."""


def _log(low: float, high: float) -> Range:
    return Range(low=low, high=high, log=True)


def _uniform(low: float, high: float) -> Range:
    return Range(low=low, high=high)


LR = _log(1e-5, 0.1)
"""Learning rates: log-uniform, the paper's range."""

_EMA = _log(1e-4, 1.0)

LOSSES: dict[type[LearnerSettings], Space] = {
    # The paper's.
    ERACESettings: {"alpha": _uniform(0.0, 1.0)},
    DERSettings: {"alpha": _log(1e-9, 10.0)},
    DERPlusPlusSettings: {"alpha": _log(1e-9, 10.0), "beta": _log(1e-9, 10.0)},
    # Ours. Published for Split-CIFAR100 and Split-TinyImageNet: α .52 and .47, T 1.2 and 1.8.
    ERLwFSettings: {"alpha": _log(1e-2, 10.0), "temperature": _uniform(0.5, 4.0)},
    # The number of candidates: 128 there, 50 in the method's own paper.
    MIRSettings: {"subsample": Choice(values=(20, 50, 128))},
    # β .67 and .48, decay .83 and .98, ε .053 and .077, 2 and 5 steps, inner rate 1e-4 and 1e-2.
    RARSettings: {
        "beta": _uniform(0.0, 1.0),
        "decay": _uniform(0.5, 1.0),
        "epsilon": _log(1e-3, 0.3),
        "iterations": Range(low=1, high=5, whole=True),
        "inner_lr": _log(1e-5, 0.1),
    },
    # T .18 and .41 there, .07 in the method's own paper.
    SCRSettings: {"temperature": _log(0.02, 1.0)},
    OCMSettings: {"temperature": _log(0.02, 1.0)},
    OnProSettings: {"temperature": _log(0.02, 1.0), "prototype_temperature": _log(0.05, 2.0)},
    # Weight 1 and rate .008 were tried first.
    SlowERSettings: {"distillation": _log(0.1, 10.0), "slow_rate": _log(1e-3, 0.1)},
    # Large steps are possible, since they are annealed.
    GDumbSettings: {"lr": _log(1e-3, 1.0)},
}
"""Ranges of a loss, added to the learning rate or in its place. ER has none, nor has A-GEM, whose
reference sample was not tuned."""

TRANSFORM_SPACES: dict[type[TransformSettings], Space] = {
    # The paper's.
    OCARSettings: {"tau_step": _log(1e-10, 1e-5), "ema": _EMA},
    # Ours. The damping covers OCAR's start, which is the learning rate, and higher values.
    NGDSettings: {"damping": _log(1e-5, 1.0), "ema": _EMA},
    EWCSettings: {"strength": _log(1e-3, 1e3), "ema": _EMA},
    # Published: ω₀ 4, .25 and 1, β 2, 2 and 1.
    LPRSettings: {
        "omega0": _log(1e-2, 100.0),
        "omega_power": Choice(values=(1.0, 2.0)),
        "refresh_every": Choice(values=(10, 30, 90)),
    },
    AGEMSettings: {},
}
"""Ranges of a gradient transform."""

REGRESSION_LR = _log(1e-4, 1.0)
"""Learning rates in regression, a convex problem with gradients of order 1."""

REGRESSION: dict[type[TransformSettings], Space] = {
    # Ours: the paper tunes all four methods and gives no ranges. The damping and its increase are
    # on the scale of the Fisher, which is the scale of the inputs, not of a softmax.
    OCARSettings: {"tau": _log(1e-3, 10.0), "tau_step": _log(1e-6, 0.1), "ema": _log(1e-3, 1.0)},
    NGDSettings: {"damping": _log(1e-3, 10.0), "ema": _log(1e-3, 1.0)},
    EWCSettings: {"strength": _log(1e-3, 100.0), "ema": _log(1e-3, 1.0)},
}
"""Ranges of a gradient transform in regression, where they differ."""


def search_space(
    method: str, *, transform: str | None = None, regression: bool = False
) -> dict[str, Range | Choice]:
    """The search space of a method: a range or a choice for each setting that is searched.

    Args:
        method: A name in ``METHODS``.
        transform: A gradient transform to use with the method's objective; by default its own.
        regression: Whether there are targets instead of classes; some ranges differ.
    """
    chosen = METHODS.find(method)
    rewriting = chosen.transform if transform is None else TRANSFORMS.find(transform)
    space: dict[str, Range | Choice] = {"lr": REGRESSION_LR if regression else LR}
    space |= LOSSES.get(chosen.settings, {})
    if rewriting is not None:
        space |= TRANSFORM_SPACES.get(rewriting, {})  # none for a plugin's
        if regression:
            space |= REGRESSION.get(rewriting, {})
    return space
