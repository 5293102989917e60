"""The numbers in the figures of a study: parallel coordinates and importance of the settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ocar_lab.runs.find import read_each
from ocar_lab.runs.folder import naming_damage
from ocar_lab.runs.studies import LEAST, StoredStudy, Trial, read_study
from ocar_lab.runs.texts import settings_text

NEAR = 1e-6
"""A place this far beyond the end of its axis is there by rounding."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of the parallel coordinates; 0 is its lower end and 1 its upper end."""

    name: str
    ticks: tuple[tuple[float, str], ...]  # positions and texts
    places: tuple[float, ...]  # position of each trial


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """A study as the page shows it."""

    title: str
    path: str
    state: str  # running if a process works on it, else idle
    about: str  # trials by state, and the best
    note: str  # why there are no importances; empty if there are
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # of all trials, best first
    axes: tuple[Axis, ...]  # the settings, then the value; of the finished trials
    goodness: tuple[float, ...]  # of these trials: 0 for the worst, 1 for the best
    texts: tuple[str, ...]  # each of these trials in words
    importance: tuple[tuple[str, float], ...]  # shares in per cent, largest first


def read_studies(folders: Sequence[Path]) -> tuple[list[StudyPart], list[str]]:
    """The studies that can be read, and the errors of the others."""
    return read_each(read_part, folders)


def read_part(folder: Path) -> StudyPart:
    """One study.

    Raises:
        RunError: It is damaged.
        MissingPackageError: Optuna is not installed.
    """
    with naming_damage(folder):
        return describe_study(read_study(folder))


def describe_study(study: StoredStudy) -> StudyPart:
    """The numbers and texts of a study."""
    values = {t.number: t.value for t in study.trials if t.value is not None}
    ranked = [trial for trial in study.trials if trial.number in values]
    ranked.sort(key=lambda trial: values[trial.number], reverse=study.maximize)
    last = max(1, len(ranked) - 1)
    states = Counter(trial.state for trial in study.trials)
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    best = f" Best: {_words(study, ranked[0])}." if ranked else ""
    others = [trial for trial in study.trials if trial.value is None]
    return StudyPart(
        title=f"{study.benchmark} {study.method}: search",
        path=str(study.path),
        state="running" if study.running else "idle",
        about=f"{'Running. ' if study.running else ''}{len(study.trials)} trials"
        f"{f' ({counted})' if counted else ''}, by {study.objective}.{best}",
        note=""
        if study.importance
        else f"Importances need {LEAST} finished trials; there are {len(ranked)}.",
        header=("trial", "state", "value", *study.space, "seconds"),
        rows=tuple(_row(study, trial) for trial in [*ranked, *others]),
        axes=_axes(study, ranked) if ranked else (),
        goodness=tuple(round(1 - place / last, 3) for place in range(len(ranked))),
        texts=tuple(_words(study, trial) for trial in ranked),
        importance=tuple((n, round(100 * share, 1)) for n, share in study.importance.items()),
    )


def _row(study: StoredStudy, trial: Trial) -> tuple[str, ...]:
    settings = [_text(trial.settings.get(name, "")) for name in study.space]
    seconds = "" if trial.seconds is None else f"{trial.seconds:.1f}"
    value = "" if trial.value is None else _value_text(study, trial.value)
    return (str(trial.number), trial.error or trial.state, value, *settings, seconds)


def _words(study: StoredStudy, trial: Trial) -> str:
    value = _value_text(study, trial.value or 0.0)
    return f"trial {trial.number} with {value}, {settings_text(trial.settings)}"


def _value_text(study: StoredStudy, value: float) -> str:
    """The value of a trial: an accuracy in per cent, or a loss."""
    return f"{100 * value:.1f} %" if study.maximize else f"{value:.5g}"


def _axes(study: StoredStudy, trials: Sequence[Trial]) -> tuple[Axis, ...]:
    values = [trial.value for trial in trials if trial.value is not None]
    ends = {"low": min(values), "high": max(values)}
    return (
        *(
            _axis(n, part, [t.settings[n] for t in trials], _text)
            for n, part in study.space.items()
        ),
        _axis(study.objective, ends, values, partial(_value_text, study)),
    )


def _axis(
    name: str, part: Mapping[str, Any], values: Sequence[Any], text: Callable[[Any], str]
) -> Axis:
    """An axis for a choice, or for a range of numbers, linear or logarithmic."""
    if "values" in part:
        options = list(part["values"])
        shown, scale = options, {option: float(n) for n, option in enumerate(options)}.__getitem__
    else:
        low, high = float(part["low"]), float(part["high"])
        scale, back = (math.log, math.exp) if part.get("log") else (float, float)
        shown = [low, back((scale(low) + scale(high)) / 2), high] if high > low else [low]
    first = scale(shown[0])
    width = scale(shown[-1]) - first or 1.0

    def place(value: Any) -> float:
        found = (scale(value) - first) / width
        if not -NEAR <= found <= 1 + NEAR:
            raise ValueError(f"{name} {value} is outside its range")
        return round(found, 4)

    return Axis(
        name=name,
        ticks=tuple((place(value), text(value)) for value in shown),
        places=tuple(map(place, values)),
    )


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
