"""Where to search: the ranges of each method's settings, as plain data.

A method is a loss and, for some, a gradient transform, and so is its space: the learning rate, what
its loss adds and what its transform adds. The tables below are by the classes of the settings, so
that any loss goes with any transform here too.

The ranges of the learning rate, Δτ, α_EMA and of the weights in ER-ACE, DER and DER++ are the
paper's. The others are our own, each around what was published as selected: a decade or two to
both sides where only the order of magnitude matters, all that makes sense where it is bounded.
Whatever is not named here is a choice about the method and no number to tune; it keeps the value
of the benchmark's preset, or the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ocar.config import require
from ocar.methods.agem import AGEMSettings
from ocar.methods.der import DERPlusPlusSettings, DERSettings
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
from ocar.streams.benchmarks import get_benchmark


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers between two ends, both included."""

    low: float
    """The lower end."""

    high: float
    """The upper end."""

    log: bool = False
    """Whether each order of magnitude counts the same."""

    whole: bool = False
    """Whether only whole numbers count."""

    def __post_init__(self) -> None:
        require("low", self.low, self.low < self.high, f"less than {self.high}")
        require("low", self.low, self.low > 0 or not self.log, "larger than 0 for log")

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A few values."""

    values: tuple[float | str, ...]
    """The values."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        require("values", self.values, len(self.values) > 1, "two or more")

    def __contains__(self, value: object) -> bool:
        return value in self.values


Space = Mapping[str, Range | Choice]
"""Where to search, by the name of the setting."""


def _log(low: float, high: float) -> Range:
    return Range(low=low, high=high, log=True)


def _uniform(low: float, high: float) -> Range:
    return Range(low=low, high=high)


LR = _log(1e-5, 0.1)
"""The paper's range of learning rates."""

_EMA = _log(1e-4, 1.0)

LOSSES: dict[type[LearnerSettings], Space] = {
    # The paper's.
    ERACESettings: {"alpha": _uniform(0.0, 1.0)},
    DERSettings: {"alpha": _log(1e-9, 10.0)},
    DERPlusPlusSettings: {"alpha": _log(1e-9, 10.0), "beta": _log(1e-9, 10.0)},
    # Ours. Selected on Split-CIFAR100 and Split-TinyImageNet: α .52 and .47, T 1.2 and 1.8.
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
    # Not online: it may take large steps, since it anneals them.
    GDumbSettings: {"lr": _log(1e-3, 1.0)},
}
"""What a loss adds to the learning rate, or puts in its place. None for ER, and for A-GEM, whose
reference sample was not tuned."""

TRANSFORM_SPACES: dict[type[TransformSettings], Space] = {
    # The paper's.
    OCARSettings: {"tau_step": _log(1e-10, 1e-5), "ema": _EMA},
    # Ours. The damping stands where OCAR begins, at the learning rate, and higher.
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
"""What a gradient transform adds."""

REGRESSION_LR = _log(1e-4, 1.0)
"""The learning rates of regression, where the problem is convex and gradients are of order 1."""

REGRESSION: dict[type[TransformSettings], Space] = {
    # The paper tunes all four methods there and gives no ranges: these are ours. The damping and
    # its increase are on the scale of the Fisher, which is that of the inputs, not of a softmax.
    OCARSettings: {"tau": _log(1e-3, 10.0), "tau_step": _log(1e-6, 0.1), "ema": _log(1e-3, 1.0)},
    NGDSettings: {"damping": _log(1e-3, 10.0), "ema": _log(1e-3, 1.0)},
    EWCSettings: {"strength": _log(1e-3, 100.0), "ema": _log(1e-3, 1.0)},
}
"""What a gradient transform adds in regression, where that is another."""


def search_space(benchmark: str, method: str, transform: str | None = None) -> dict[str, Any]:
    """Where to search for the settings of a method.

    Args:
        benchmark: Name of the benchmark; regression has other ranges than classification.
        method: A name in ``METHODS``.
        transform: A name in ``TRANSFORMS``; None for the method's own.

    Returns:
        A :class:`Range` or :class:`Choice` for each setting to be searched.
    """
    regression = get_benchmark(benchmark).kind == "regression"
    chosen = METHODS[method]
    rewriting = chosen.transform if transform is None else TRANSFORMS[transform]
    space: dict[str, Any] = {"lr": REGRESSION_LR if regression else LR}
    space |= LOSSES.get(chosen.settings, {})
    if rewriting is not None:
        space |= TRANSFORM_SPACES[rewriting]
        if regression:
            space |= REGRESSION.get(rewriting, {})
    return space
