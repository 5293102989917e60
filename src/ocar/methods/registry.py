"""Every method by name, and how to make a learner of one.

A method is the settings of an objective and, for some, those of a gradient
transform. To add one: a file with its settings and one entry here; the
check-suite of the tests finds it by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import nn

from ocar.config import reject_unknown
from ocar.errors import ConfigError
from ocar.guard import Guard
from ocar.learner import Learner
from ocar.methods.agem import AGEMLearnerSettings, AGEMSettings
from ocar.methods.der import DERPlusPlusSettings, DERSettings
from ocar.methods.er import ERSettings
from ocar.methods.er_ace import ERACESettings
from ocar.methods.ewc import EWCSettings
from ocar.methods.gdumb import GDumb, GDumbSettings
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
from ocar.streams.benchmarks import get_benchmark


@dataclass(frozen=True, kw_only=True)
class Method:
    """A named combination of an objective and a gradient transform."""

    settings: type[LearnerSettings]
    transform: type[TransformSettings] | None
    about: str
    learner: type[Learner] = Learner


TRANSFORMS: dict[str, type[TransformSettings]] = {
    "agem": AGEMSettings,
    "ewc": EWCSettings,
    "lpr": LPRSettings,
    "ngd": NGDSettings,
    "ocar": OCARSettings,
}

METHODS: dict[str, Method] = {
    "er": Method(settings=ERSettings, transform=None, about="Experience replay with plain SGD."),
    "er-ace": Method(
        settings=ERACESettings,
        transform=None,
        about="Asymmetric cross-entropy: new samples compete among their own classes.",
    ),
    "er-lwf": Method(
        settings=ERLwFSettings,
        transform=None,
        about="Replay and distillation from the model before the current task.",
    ),
    "mir": Method(
        settings=MIRSettings,
        transform=None,
        about="Replays what the next step would hurt most.",
    ),
    "rar": Method(
        settings=RARSettings,
        transform=None,
        about="Adversarial replay: part of the replayed samples is perturbed.",
    ),
    "der": Method(
        settings=DERSettings,
        transform=None,
        about="Dark experience replay: holds replayed samples to stored logits.",
    ),
    "der++": Method(
        settings=DERPlusPlusSettings,
        transform=None,
        about="DER with the cross-entropy of replayed samples.",
    ),
    "scr": Method(
        settings=SCRSettings,
        transform=None,
        about="Supervised contrastive replay, with the nearest class mean.",
    ),
    "ocm": Method(
        settings=OCMSettings,
        transform=None,
        about="Mutual information: rotated views contrasted, also with an earlier model's.",
    ),
    "onpro": Method(
        settings=OnProSettings,
        transform=None,
        about="Prototypes contrasted online; replays what lies between close ones.",
    ),
    "gdumb": Method(
        settings=GDumbSettings,
        transform=None,
        learner=GDumb,
        about="Only remembers; trains from scratch on its memory when asked for a prediction.",
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
}


def make_learner(
    method: str,
    model: nn.Module,
    *,
    preset: str | None = None,
    transform: str | None = None,
    guard: Guard | None = Guard(),  # noqa: B008 (it is frozen)
    **settings: Any,
) -> Learner:
    """A learner by the name of its method.

    Args:
        method: A name in ``METHODS``, such as ``"ocar"``.
        model: Any module.
        preset: A benchmark whose selected settings to start from, such as ``"split-cifar100"``.
        transform: A gradient transform to use with the method's objective, such as ``"ocar"``.
        guard: When to back off from a batch; None for never.
        **settings: Settings of the method and of its transform, over those of the preset.

    Raises:
        ConfigError: A name is unknown, a setting is missing or out of range.
    """
    values = {**preset_settings(preset, method), **settings} if preset is not None else settings
    own, rewriting = make_settings(method, transform=transform, **values)
    return METHODS[method].learner(model, own, transform=rewriting, guard=guard)


def make_settings(
    method: str, *, transform: str | None = None, **settings: Any
) -> tuple[LearnerSettings, TransformSettings | None]:
    """The settings of a method and those of its gradient transform, if it has one.

    Args:
        method: A name in ``METHODS``.
        transform: A gradient transform to use with the method's objective.
        **settings: Settings of either.

    Raises:
        ConfigError: A name is unknown, a setting is missing or out of range, or the two make no
            sense together.
    """
    chosen = _lookup("method", method, METHODS)
    kind = chosen.transform if transform is None else _lookup("transform", transform, TRANSFORMS)
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


def _lookup(what: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise ConfigError(f"Unknown {what} {name!r}. There are {', '.join(sorted(table))}.")
    return table[name]


def preset_settings(benchmark: str, method: str) -> dict[str, Any]:
    """What a benchmark fixes and what was selected on it for a method.

    Raises:
        ConfigError: There is no such preset.
    """
    tuned = _lookup("preset", benchmark, PRESETS)
    selected = _lookup(f"method with a preset for {benchmark!r}", method, tuned)
    return {**get_benchmark(benchmark).learner_settings(), **selected}


def usual_interval(method: str) -> int | Literal["task"]:
    """After how many batches a run evaluates a method: each, unless it trains for a prediction."""
    return "task" if METHODS[method].settings.trains_when_asked else 1


def _make(cls: Any, values: Mapping[str, Any]) -> Any:
    try:
        return cls(**values)
    except TypeError as error:
        missing = str(error).rpartition("argument")[2].lstrip("s: ")
        raise ConfigError(f"{cls.__name__} needs a value for {missing}.") from error
