"""Every method by name, and how to make a learner of one.

A method is the settings of an objective and, for some, those of a gradient
transform. To add one: a file with its settings, one line here, one row in the
check-suite of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from ocar.config import reject_unknown
from ocar.errors import ConfigError
from ocar.learners.base import Learner
from ocar.learners.er import ERSettings
from ocar.learners.er_ace import ERACESettings
from ocar.learners.ocar import OCARSettings
from ocar.learners.presets import PRESETS
from ocar.learners.settings import LearnerSettings
from ocar.learners.transform import TransformSettings
from ocar.streams.benchmarks import get_benchmark


@dataclass(frozen=True, kw_only=True)
class Method:
    """A named combination of an objective and a gradient transform."""

    settings: type[LearnerSettings]
    transform: type[TransformSettings] | None
    about: str


TRANSFORMS: dict[str, type[TransformSettings]] = {"ocar": OCARSettings}

METHODS: dict[str, Method] = {
    "er": Method(settings=ERSettings, transform=None, about="Experience replay with plain SGD."),
    "er-ace": Method(
        settings=ERACESettings,
        transform=None,
        about="Asymmetric cross-entropy: new samples compete among their own classes.",
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
}


def make_learner(
    method: str,
    model: nn.Module,
    *,
    preset: str | None = None,
    transform: str | None = None,
    **settings: Any,
) -> Learner:
    """A learner by the name of its method.

    Args:
        method: A name in ``METHODS``, such as ``"ocar"``.
        model: Any module.
        preset: A benchmark whose selected settings to start from, such as ``"split-cifar100"``.
        transform: A gradient transform to use with the method's objective, such as ``"ocar"``.
        **settings: Settings of the method and of its transform, over those of the preset.

    Raises:
        ConfigError: A name is unknown, a setting is missing or out of range.
    """
    values = {**preset_settings(preset, method), **settings} if preset is not None else settings
    own, rewriting = make_settings(method, transform=transform, **values)
    return Learner(model, own, transform=rewriting)


def make_settings(
    method: str, *, transform: str | None = None, **settings: Any
) -> tuple[LearnerSettings, TransformSettings | None]:
    """The settings of a method and those of its gradient transform, if it has one.

    Args:
        method: A name in ``METHODS``.
        transform: A gradient transform to use with the method's objective.
        **settings: Settings of either.

    Raises:
        ConfigError: A name is unknown, a setting is missing or out of range.
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
    return _make(chosen.settings, own), _make(kind, rest)


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


def _make(cls: Any, values: Mapping[str, Any]) -> Any:
    try:
        return cls(**values)
    except TypeError as error:
        missing = str(error).rpartition("argument")[2].lstrip("s: ")
        raise ConfigError(f"{cls.__name__} needs a value for {missing}.") from error
