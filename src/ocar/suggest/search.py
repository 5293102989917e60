"""Trials on prefixes of a recorded stream, at points of a Sobol sequence.

The score of a trial has no tasks and no boundaries: after every few batches the learner is
evaluated on the held-out samples so far, and the score is the mean over time. In classification
this is the paper's average anytime accuracy, in regression the same with squared errors.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.quasirandom import SobolEngine

from ocar.errors import InputError, NumericalError
from ocar.evaluate.measure import hits, squared_error
from ocar.learner import Learner
from ocar.methods.spaces import Choice, Range, Space
from ocar.rng import derive_seed
from ocar.state import not_finite
from ocar.streams.base import Labelled, concatenate
from ocar.suggest.plan import PREFIXES, Plan
from ocar.suggest.recorded import Recorded


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Settings that were tried."""

    number: int  #: In the order of the search; 0 are the defaults if the method has them.
    settings: Mapping[str, Any]  #: The settings that are searched; none for the defaults.
    batches: int = 0  #: Batches of the longest prefix that was scored.
    score: float = math.nan  #: The score on it; NaN if the learner diverged.


def draw(space: Space, count: int, *, seed: int) -> list[dict[str, Any]]:
    """Points of a space that cover it evenly: a scrambled Sobol sequence."""
    engine = SobolEngine(len(space), scramble=True, seed=derive_seed(seed, "suggest"))
    rows: list[list[float]] = engine.draw(count, dtype=torch.float64).tolist()
    return [
        {name: _value(part, at) for (name, part), at in zip(space.items(), row, strict=True)}
        for row in rows
    ]


def _value(part: Range | Choice, at: float) -> Any:
    """The value at a place in [0, 1); numbers have three digits, so that they can be typed."""
    if isinstance(part, Choice):
        return part.values[int(at * len(part.values))]
    if part.whole:
        return int(part.low + at * (part.high - part.low + 1))
    if part.log:
        value = part.low * (part.high / part.low) ** at
    else:
        value = part.low + at * (part.high - part.low)
    return float(f"{value:.3g}")


class Search:
    """The trials of one search.

    Args:
        make: Makes a fresh learner from searched settings.
        recorded: The stream.
        moments: Evaluations over the longest prefix.

    Attributes:
        trials: The trials that have a score, or have diverged, by number.
        longest: Batches of the longest prefix; the whole stream before there is a plan.
        learned: Batches that the trials have learned.
        moved: Called after every batch of a trial; what it raises ends the search.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any]], Learner],
        recorded: Recorded,
        *,
        moments: int,
    ) -> None:
        self.make = make
        self.recorded = recorded
        self.moments = moments
        self.longest = recorded.length
        self.moved: Callable[[], object] = lambda: None
        self.trials: dict[int, Trial] = {}
        self.learned = 0

    def measure(self, settings: Mapping[str, Any], *, limit: float) -> float:
        """Seconds that a batch takes, measured on the shortest prefix or for ``limit`` seconds."""
        batches = max(2, round(PREFIXES[0] * self.recorded.length))
        begun = start = time.perf_counter()
        done = 0
        with contextlib.suppress(NumericalError):
            for done, _ in enumerate(self._scores(self.make(settings), batches)):
                if done == 0:  # much happens at the first batch only
                    start = time.perf_counter()
                elif time.perf_counter() - start > limit:
                    break
        now = time.perf_counter()
        return (now - start) / done if done else now - begun

    def run(
        self,
        points: Sequence[Mapping[str, Any]],
        plan: Plan,
        *,
        always: int = 0,
        is_used: Callable[[float], bool] = lambda share: False,
    ) -> None:
        """Search.

        Args:
            points: The settings to try.
            plan: On which prefixes.
            always: So many of the first points are tried on every prefix.
            is_used: Whether a share of the time has passed. If a prefix has used its own, its
                other trials are left out, so that the next prefix has its time.
        """
        self.longest = plan.batches
        alive = [Trial(number=number, settings=point) for number, point in enumerate(points)]
        work = 0
        for count, batches in plan.prefixes():
            work += count * batches
            chosen = [t for rank, t in enumerate(alive) if rank < count or t.number < always]
            scored: list[Trial] = []
            for trial in chosen:
                if scored and is_used(work / plan.work):
                    break
                score = self._score(trial.settings, batches)
                scored.append(replace(trial, batches=batches, score=score))
                self.trials[trial.number] = scored[-1]
            alive = self.ranked(scored)

    def ranked(self, trials: Sequence[Trial] | None = None) -> list[Trial]:
        """Trials, by default all, the longest prefix first and on it the best first."""
        sign = 1 if self.recorded.regression else -1

        def place(trial: Trial) -> tuple[bool, int, float]:
            lost = math.isnan(trial.score)
            return lost, -trial.batches, 0.0 if lost else sign * trial.score

        return sorted(self.trials.values() if trials is None else trials, key=place)

    def _score(self, settings: Mapping[str, Any], batches: int) -> float:
        """The mean of all evaluations on a prefix; NaN if the learner diverged."""
        learner = self.make(settings)
        found = []
        try:
            for score in self._scores(learner, batches):
                found += [] if score is None else [score]
                self.learned += 1
                self.moved()
        except NumericalError:
            return math.nan
        finally:
            learner.release()
        if not found:
            raise InputError(
                f"No sample is held out in the first {batches} batches, where one in "
                f"{self.recorded.one_in} is. The stream is too short."
            )
        # A guard hides that steps were not finite, and the highest logit that all are NaN.
        diverged = learner.guarded.not_finite or not_finite(learner.model.state_dict())
        mean = sum(found) / len(found)
        return math.nan if diverged or not math.isfinite(mean) else mean

    def _scores(self, learner: Learner, batches: int) -> Iterator[float | None]:
        """Learn a prefix; gives an evaluation, or None, for each batch."""
        every = math.ceil(self.longest / self.moments)
        held: list[Labelled] = []
        for index, (new, kept) in enumerate(self.recorded.first(batches), start=1):
            if len(new[1]):
                try:
                    learner.learn(*new)
                except InputError as error:
                    raise InputError(f"Batch {index - 1}: {error}") from error
            held += [kept] if len(kept[1]) else []
            due = index % every == 0 or index == batches
            yield self._evaluate(learner, held) if due and held else None

    def _evaluate(self, learner: Learner, held: list[Labelled]) -> float:
        """Accuracy or mean squared error on held-out samples."""
        x, y = concatenate(held)
        if self.recorded.regression:
            return float(squared_error(learner, x, y))
        return float(hits(learner, x, y).double().mean())
