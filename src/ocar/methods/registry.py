"""Every method and every gradient transform by name.

A method is the settings of an objective and, for some, those of a gradient transform. To add one:
a file with its settings and one entry here, or ``ocar.register`` from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from ocar.config import reject_unknown, to_plain
from ocar.errors import CheckpointError, ConfigError
from ocar.guard import Guard
from ocar.methods.agem import AGEMLearnerSettings, AGEMSettings
from ocar.methods.der import DERPlusPlusSettings, DERSettings
from ocar.methods.er import ERSettings
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
from ocar.methods.presets import PRESETS
from ocar.methods.rar import RARSettings
from ocar.methods.scr import SCRSettings
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import TransformSettings
from ocar.registry import Registry
from ocar.streams.benchmarks import get_benchmark


@dataclass(frozen=True, kw_only=True)
class Method:
    """A named combination of an objective and a gradient transform."""

    settings: type[LearnerSettings]
    """Settings of the objective."""

    transform: type[TransformSettings] | None = None
    """Settings of the gradient transform; None for plain SGD."""

    about: str
    """What it does, in one sentence."""


TRANSFORMS: Registry[type[TransformSettings]] = Registry(
    "transform",
    {
        "agem": AGEMSettings,
        "ewc": EWCSettings,
        "lpr": LPRSettings,
        "ngd": NGDSettings,
        "ocar": OCARSettings,
    },
)
"""Gradient transforms by name."""

METHODS: Registry[Method] = Registry(
    "method",
    {
        "er": Method(settings=ERSettings, about="Experience replay with plain SGD."),
        "er-ace": Method(
            settings=ERACESettings,
            about="Asymmetric cross-entropy: new samples compete among their own classes.",
        ),
        "er-lwf": Method(
            settings=ERLwFSettings,
            about="Replay and distillation from the model before the current task.",
        ),
        "mir": Method(
            settings=MIRSettings, about="Replays the samples that the next step would hurt most."
        ),
        "rar": Method(
            settings=RARSettings,
            about="Adversarial replay: some of the replayed samples are perturbed.",
        ),
        "der": Method(
            settings=DERSettings,
            about="Dark experience replay: replayed samples are held to stored logits.",
        ),
        "der++": Method(
            settings=DERPlusPlusSettings,
            about="DER with the cross-entropy of replayed samples.",
        ),
        "scr": Method(
            settings=SCRSettings,
            about="Supervised contrastive replay, with the nearest class mean.",
        ),
        "ocm": Method(
            settings=OCMSettings,
            about="Mutual information: rotated views contrasted, also with an earlier model's.",
        ),
        "onpro": Method(
            settings=OnProSettings,
            about="Prototypes contrasted online; replays mixtures of close classes.",
        ),
        "gdumb": Method(
            settings=GDumbSettings,
            about="Only remembers; trains from scratch on its memory for each prediction.",
        ),
        "agem": Method(
            settings=AGEMLearnerSettings,
            transform=AGEMSettings,
            about="A-GEM: the gradient of new samples projected against that of the memory.",
        ),
        "lpr": Method(
            settings=ERSettings,
            transform=LPRSettings,
            about="Layerwise Proximal Replay: each layer's outputs on the memory are held.",
        ),
        "ewc": Method(
            settings=ERSettings,
            transform=EWCSettings,
            about="Online EWC with replay: a quadratic penalty to earlier weights.",
        ),
        "ngd": Method(
            settings=ERSettings,
            transform=NGDSettings,
            about="Natural gradient with replay: OCAR without its stability constraint.",
        ),
        "ocar": Method(
            settings=ERSettings,
            transform=OCARSettings,
            about="Online Curvature-Aware Replay: the gradient preconditioned by K-FAC.",
        ),
        "ocar-ace": Method(
            settings=ERACESettings,
            transform=OCARSettings,
            about="OCAR on the asymmetric cross-entropy of ER-ACE.",
        ),
        "ocar-der++": Method(
            settings=DERPlusPlusSettings,
            transform=OCARSettings,
            about="OCAR on the loss of DER++.",
        ),
    },
)
"""Methods by name."""


def make_settings(
    method: str, *, transform: str | None = None, **settings: Any
) -> tuple[LearnerSettings, TransformSettings | None]:
    """The settings of a method and those of its gradient transform, if it has one.

    Args:
        method: A name in ``METHODS``.
        transform: A gradient transform to use with the method's objective.
        **settings: Settings of either.

    Raises:
        ConfigError: A name is unknown, a setting is missing or out of range, or the two cannot be
            used together.
    """
    chosen = METHODS.find(method)
    kind = chosen.transform if transform is None else TRANSFORMS.find(transform)
    learner_names = {f.name for f in fields(chosen.settings)}
    own = {name: value for name, value in settings.items() if name in learner_names}
    rest = {name: value for name, value in settings.items() if name not in learner_names}
    if kind is None:
        reject_unknown(chosen.settings, rest)
        return _make(chosen.settings, own), None
    reject_unknown(kind, rest)
    made, rewriting = _make(chosen.settings, own), _make(kind, rest)
    if (reason := made.refuses(rewriting)) is not None:
        raise ConfigError(reason)
    return made, rewriting


def _make(cls: Any, values: Mapping[str, Any]) -> Any:
    try:
        return cls(**values)
    except TypeError as error:
        missing = str(error).rpartition("argument")[2].lstrip("s: ")
        raise ConfigError(f"{cls.__name__} needs a value for {missing}.") from error


def preset_settings(benchmark: str, method: str) -> dict[str, Any]:
    """What a benchmark fixes and what was selected on it for a method.

    Raises:
        ConfigError: There is no such preset.
    """
    if benchmark not in PRESETS:
        raise ConfigError(f"Unknown preset {benchmark!r}. There are {', '.join(sorted(PRESETS))}.")
    tuned = PRESETS[benchmark]
    if method not in tuned:
        raise ConfigError(
            f"Unknown method with a preset for {benchmark!r} {method!r}. There are "
            f"{', '.join(sorted(tuned))}."
        )
    return {**get_benchmark(benchmark).learner_settings(), **tuned[method]}


def usual_interval(method: str) -> int | Literal["task"]:
    """After how many batches a run evaluates a method: each, unless it trains for a prediction."""
    return "task" if METHODS.find(method).settings.trains_when_asked else 1


def describe_method(
    settings: LearnerSettings, transform: TransformSettings | None, guard: Guard | None
) -> dict[str, Any]:
    """A method in plain values, for a checkpoint.

    Raises:
        CheckpointError: The method or its transform has no name, so that nobody could make it
            again.
    """
    names = [name for name, method in METHODS.items() if method.settings is type(settings)]
    own = None if transform is None else TRANSFORMS.name_of(type(transform))
    unnamed = type(settings) if not names else None if transform is None or own else type(transform)
    if unnamed is not None:
        raise CheckpointError(
            f"{unnamed.__name__} has no name, so that a checkpoint with it could not be loaded. "
            f'Register it where it is defined: ocar.register("a-name", {unnamed.__name__}).'
        )
    return {
        "method": names[0],
        "settings": to_plain(settings),
        "transform": own,
        "transform_settings": None if transform is None else to_plain(transform),
        "guard": None if guard is None else to_plain(guard),
    }
