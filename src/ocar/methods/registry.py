"""Every method and every gradient transform by name.

A method is the settings of an objective and, for some methods, of a gradient transform. To add one,
write a file with its settings and add an entry here, or call ``ocar.register`` from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from ocar.config import reject_unknown, to_plain
from ocar.errors import CheckpointError, ConfigError, MissingSettingError
from ocar.guard import Guard
from ocar.methods.agem import AGEMLearnerSettings, AGEMSettings
from ocar.methods.der import DERPlusPlusSettings, DERSettings
from ocar.methods.distillation import SlowERSettings
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
from ocar.registry import Registry, unknown
from ocar.streams.benchmarks import get_benchmark


@dataclass(frozen=True)
class Method:
    """A named combination of an objective and a gradient transform."""

    settings: type[LearnerSettings]  #: Settings of the objective.
    #: Settings of the gradient transform; None for plain SGD.
    transform: type[TransformSettings] | None = None
    about: str = field(kw_only=True)  #: What it does, in one sentence.


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
        "er": Method(ERSettings, about="Experience replay with plain SGD."),
        "er-ace": Method(
            ERACESettings,
            about="Asymmetric cross-entropy: new samples compete among their own classes.",
        ),
        "er-lwf": Method(
            ERLwFSettings, about="Replay and distillation from the model before the current task."
        ),
        "mir": Method(MIRSettings, about="Replays the samples that the next step would hurt most."),
        "rar": Method(
            RARSettings, about="Adversarial replay: some of the replayed samples are perturbed."
        ),
        "der": Method(
            DERSettings, about="Dark experience replay: replayed samples are held to stored logits."
        ),
        "der++": Method(
            DERPlusPlusSettings, about="DER with the cross-entropy of replayed samples."
        ),
        "scr": Method(
            SCRSettings, about="Supervised contrastive replay, with the nearest class mean."
        ),
        "ocm": Method(
            OCMSettings,
            about="Mutual information: rotated views contrasted, also with an earlier model's.",
        ),
        "onpro": Method(
            OnProSettings, about="Prototypes contrasted online; replays mixtures of close classes."
        ),
        "gdumb": Method(
            GDumbSettings,
            about="Only remembers; trains from scratch on its memory for each prediction.",
        ),
        "agem": Method(
            AGEMLearnerSettings,
            AGEMSettings,
            about="A-GEM: the gradient of new samples projected against that of the memory.",
        ),
        "lpr": Method(
            ERSettings,
            LPRSettings,
            about="Layerwise Proximal Replay: each layer's outputs on the memory are held.",
        ),
        "ewc": Method(
            ERSettings,
            EWCSettings,
            about="Online EWC with replay: a quadratic penalty to earlier weights.",
        ),
        "ngd": Method(
            ERSettings,
            NGDSettings,
            about="Natural gradient with replay: OCAR without its stability constraint.",
        ),
        "ocar": Method(
            ERSettings,
            OCARSettings,
            about="Online Curvature-Aware Replay: the gradient preconditioned by K-FAC.",
        ),
        "ocar-ace": Method(
            ERACESettings, OCARSettings, about="OCAR on the asymmetric cross-entropy of ER-ACE."
        ),
        "ocar-der++": Method(DERPlusPlusSettings, OCARSettings, about="OCAR on the loss of DER++."),
        "ocar-slow": Method(
            SlowERSettings,
            OCARSettings,
            about="OCAR with slow weights that teach it, and predict with it.",
        ),
    },
)
"""Methods by name."""


def make_settings(
    method: str, *, transform: str | None = None, **settings: Any
) -> tuple[LearnerSettings, TransformSettings | None]:
    """The settings of a method, and of its gradient transform if it has one.

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
    names = {f.name for f in fields(chosen.settings)}
    own = {name: value for name, value in settings.items() if name in names}
    rest = {name: value for name, value in settings.items() if name not in names}
    reject_unknown(kind or chosen.settings, rest, others=names)
    made = _make(chosen.settings, own)
    rewriting = None if kind is None else _make(kind, rest)
    made.check_transform(rewriting)
    return made, rewriting


def _make(cls: Any, values: Mapping[str, Any]) -> Any:
    try:
        return cls(**values)
    except TypeError as error:
        needed = [f.name for f in fields(cls) if f.default is f.default_factory is MISSING]
        missing = tuple(name for name in needed if name not in values)
        if not missing:
            raise ConfigError(f"{cls.__name__} does not take these settings: {error}") from error
        named = " and ".join(map(repr, missing))
        raise MissingSettingError(f"{cls.__name__} needs a value for {named}.", missing) from error


def preset_settings(benchmark: str, method: str) -> dict[str, Any]:
    """The settings that a benchmark fixes, and those selected on it for a method.

    Raises:
        ConfigError: There is no such preset.
    """
    if benchmark not in PRESETS:
        raise unknown("preset", benchmark, PRESETS)
    tuned = PRESETS[benchmark]
    if method not in tuned:
        raise unknown(f"method with a preset for {benchmark!r}", method, tuned)
    return {**get_benchmark(benchmark).learner_settings(), **tuned[method]}


def usual_interval(method: str) -> int | Literal["task"]:
    """How often a run evaluates a method: every batch, or every task if it trains to predict."""
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
