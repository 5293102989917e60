"""Search for settings on a recorded stream, and say what was found."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ocar.config import require
from ocar.errors import ConfigError, NumericalError
from ocar.guard import GuardWarning
from ocar.learner import Learner
from ocar.make import make_learner
from ocar.memory import Memory
from ocar.methods.registry import make_settings, usual_interval
from ocar.methods.spaces import search_space
from ocar.models.check import check_model, copy_model
from ocar.streams.iterable import Pairs
from ocar.suggest.plan import MOST, PILOT, PREFIXES, Plan, make_plan
from ocar.suggest.progress import Line, TimeOver, Watch, score_text, time_text
from ocar.suggest.recorded import Recorded
from ocar.suggest.search import Search, Trial, draw

MOMENTS, FEW_MOMENTS = 50, 4
"""Evaluations over the longest prefix; few of a method that trains for each prediction."""

SHOWN = 5
"""Trials that are printed."""

_NO_SETTINGS = ("record", "guard")
"""Arguments of ``make_learner`` that are no settings of a method."""

_SHORT = {"ocar": "ocar.OCAR(model", "er": "ocar.ER(model"}


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What :func:`suggest` found; printing it shows a table and the line to paste."""

    settings: Mapping[str, Any]  #: The best settings found, with the given ones.
    score: float  #: Their score: accuracy, or in regression the mean squared error.
    code: str  #: The line that makes a learner with these settings.
    trials: tuple[Trial, ...]  #: All trials, the best first.
    batches: int  #: Batches of the stream that the longest trials learned.
    length: int  #: Batches of the whole stream.
    one_in: int  #: One sample in so many was held out.
    regression: bool  #: Whether less is better.

    @property
    def hasty(self) -> bool:
        """Whether no trial learned more than a quarter of the stream."""
        return self.batches <= PREFIXES[0] * self.length

    def __str__(self) -> str:
        measure = "mean squared error" if self.regression else "accuracy"
        part = "" if self.batches == self.length else f"the first {self.batches:,} of "
        rows = [["trial", "score", "batches", "settings"]]
        for trial in self.trials[:SHOWN]:
            text = ", ".join(f"{n}={v}" for n, v in trial.settings.items()) or "the defaults"
            score = score_text(trial.score, regression=self.regression)
            rows.append([str(trial.number), score, f"{trial.batches:,}", text])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        return "\n".join(
            [
                f"{measure.capitalize()} on held-out samples (one in {self.one_in}) so far, mean "
                "over time;",
                f"{len(self.trials)} trials on {part}{self.length:,} batches",
                *(
                    "  ".join([*(f"{c:>{w}}" for c, w in zip(row, widths, strict=False)), row[-1]])
                    for row in rows
                ),
                *(
                    ["Few batches were learned: give more time before you rely on this."]
                    * self.hasty
                ),
                "",
                self.code,
            ]
        )


def suggest(
    model: nn.Module,
    batches: Pairs,
    *,
    method: str = "ocar",
    transform: str | None = None,
    minutes: float = 5.0,
    trials: int | None = None,
    seed: int = 0,
    progress: bool = True,
    **settings: Any,
) -> Suggestion:
    """Search for the settings of a method on a recorded stream, without task labels.

    A few samples of the stream are held out: one in 20, in short streams up to one in 5. Every
    trial learns the others in order, from a fresh copy of the model, and is evaluated on the
    held-out samples so far, 50 times in the longest trials. Its score is the mean over time:
    of the accuracy, or, if the stream has targets, of the mean squared error. Weak trials end
    early, see :mod:`ocar.suggest.plan`. Ctrl-C ends the search with the best settings so far.

    Example::

        found = ocar.suggest(model, recorded, minutes=2, memory=500)
        print(found)
        learner = ocar.OCAR(model, **found.settings)

    Args:
        model: Any module; it is copied and does not change.
        batches: Pairs ``(x, y)`` in the order of the stream: a list, or anything else that can
            be read again and then gives the same, such as a ``DataLoader`` that does not shuffle.
        method: A name in ``METHODS``.
        transform: A gradient transform to use with the method's objective.
        minutes: Time that the search may take. If it is too short for nine trials, they learn a
            shorter part of the stream.
        trials: Settings to try, instead of as many as the time allows, at most 100. Then the
            time does not count, and the same call finds the same settings.
        seed: Seed of the search and of the learners.
        progress: Show a line on standard error, if that is a terminal.
        **settings: Settings that are given to every learner and not searched, such as ``memory``;
            also ``record`` and ``guard``.

    Raises:
        ConfigError: A name is unknown, a setting is out of range, or nothing is left to search.
        InputError: The stream is empty, cannot be read again, or cannot be learned from.
        ModelError: The model could not learn, or not be saved.
        NumericalError: No trial had a finite score.
    """
    check_model(model)
    require("minutes", minutes, 0 < minutes < float("inf"), "larger than 0")
    require("trials", trials, trials is None or trials >= 1, "at least 1, or None")
    start = time.monotonic()
    recorded = Recorded(batches)
    if recorded.regression:
        settings = {"likelihood": "gaussian", "memory_kind": "reservoir"} | settings
    points, defaults = _points(
        method, transform, settings, count=trials or MOST, seed=seed, regression=recorded.regression
    )

    def make(found: Mapping[str, Any]) -> Learner:
        values = {"seed": seed, **settings, **found}
        return make_learner(method, copy_model(model), transform=transform, **values)

    moments = MOMENTS if usual_interval(method) == 1 else FEW_MOMENTS
    search = Search(make, recorded, moments=moments)
    line = Line(shown=progress)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuardWarning)  # some settings are bad
            if trials is None:
                plan = _plan(search, points[0], line, budget=60 * minutes)
            else:
                plan = Plan(trials=trials, batches=recorded.length)
            end = start + 60 * minutes if trials is None else math.inf
            search.moved = watch = Watch(search=search, plan=plan, line=line, end=end)
            search.run(points[: plan.trials], plan, always=int(defaults), is_used=watch.is_used)
    except (KeyboardInterrupt, TimeOver):
        if not search.trials:
            raise
    finally:
        line.clear()
    best, *_ = ranking = search.ranked()
    if math.isnan(best.score):
        raise NumericalError(f"All {len(ranking)} trials diverged. Are the inputs of a sane scale?")
    chosen = {**best.settings, **settings}
    return Suggestion(
        settings=chosen,
        score=best.score,
        code=_code(method, transform, chosen),
        trials=tuple(ranking),
        batches=best.batches,
        length=recorded.length,
        one_in=recorded.one_in,
        regression=recorded.regression,
    )


def _points(
    method: str,
    transform: str | None,
    settings: Mapping[str, Any],
    *,
    count: int,
    seed: int,
    regression: bool,
) -> tuple[list[dict[str, Any]], bool]:
    """The settings to try, and whether the first are the defaults.

    Raises:
        ConfigError: The settings are wrong, or nothing is left to search.
    """
    whole = search_space(method, transform=transform, regression=regression)
    space = {name: part for name, part in whole.items() if name not in settings}
    if not space:
        raise ConfigError(f"Nothing to search: all searched settings of {method} are given.")
    points = draw(space, count, seed=seed)
    given = {name: value for name, value in settings.items() if name not in _NO_SETTINGS}
    make_settings(method, transform=transform, **given, **points[0])  # what is wrong raises
    try:
        make_settings(method, transform=transform, **given)
    except ConfigError:  # a setting has no default
        return points, False
    return [{}, *points], True


def _plan(search: Search, settings: Mapping[str, Any], line: Line, *, budget: float) -> Plan:
    """Measure the speed and say what can be tried in ``budget`` seconds."""
    line.show("ocar.suggest: measuring the speed")
    seconds = search.measure(settings, limit=PILOT * budget)
    length = search.recorded.length
    plan = make_plan(length, seconds=seconds, budget=(1 - PILOT) * budget)
    line.keep(
        f"ocar.suggest: {1000 * seconds:.3g} ms a batch, {plan.trials} trials on up to "
        f"{plan.batches:,} of {length:,} batches, at most {time_text(budget)}"
    )
    return plan


def _code(method: str, transform: str | None, settings: Mapping[str, Any]) -> str:
    """The line that makes a learner with some settings."""
    start = _SHORT.get(method, f"ocar.make_learner({method!r}, model")
    values = settings if transform is None else {"transform": transform, **settings}
    return ", ".join([start, *(f"{name}={_written(v)}" for name, v in values.items())]) + ")"


def _written(value: Any) -> str:
    """A value as it is written in Python; a function by its name."""
    if isinstance(value, Memory):
        own = {n: v for n, v in value.arguments().items() if n not in ("extras", "seed", "device")}
        home = "ocar." if type(value).__module__.startswith("ocar.") else ""
        return f"{home}{type(value).__name__}({', '.join(f'{n}={v!r}' for n, v in own.items())})"
    return str(getattr(value, "__name__", repr(value)))
