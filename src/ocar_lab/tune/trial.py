"""One trial: a run that is evaluated a few times in each task and writes nothing."""

from __future__ import annotations

import math
import operator
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from ocar.errors import NumericalError, OcarError
from ocar.evaluate import evaluate
from ocar.events import Evaluated, Learned, TaskEnded
from ocar_lab.experiment.config import RunConfig
from ocar_lab.experiment.executors import INTERVAL, Stop
from ocar_lab.experiment.executors.base import say
from ocar_lab.experiment.parts import limited_threads, make_config_learner, make_config_stream


@dataclass(frozen=True, kw_only=True)
class Working:
    """How far a trial is."""

    done: int
    """Batches done."""

    batches: int
    """Batches in all; 0 if not known."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Half of a task is over, or all of the last one, and the trial has been evaluated."""

    batches: int
    """Batches learned."""

    task: int
    """The task, counted from 0."""

    value: float
    """Validation accuracy on all tasks so far, or L_p + L_s so far."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trial is over."""

    state: Literal["finished", "stopped", "failed"]
    """How it ended."""

    error: str = ""
    """What went wrong, in a line or two, if it failed."""

    details: str = ""
    """The traceback, if it failed."""

    fatal: bool = False
    """Whether other trials would fail in the same way, as without data."""

    diverged: bool = False
    """Whether it failed because of its settings."""


TrialMessage = Working | Scored | Result

PARTS = 8
"""Evaluations for each task, about."""

LATE = 0.5
"""The part of a task of mean length after which a trial is scored.

Soon after a task has begun those do best that learn it fastest, not those that forget least."""


def is_scored(message: object) -> bool:
    """Whether a message shows that a trial has learned and been evaluated."""
    return isinstance(message, Scored)


@dataclass(frozen=True, kw_only=True)
class TrialWork:
    """What a worker does: it tries one configuration."""

    config: RunConfig
    """What to try."""

    def __call__(self, stop: Stop) -> Iterator[TrialMessage]:
        """Learn, and say how it goes.

        Args:
            stop: Asked after each batch.

        Yields:
            ``Working`` now and then, ``Scored`` late in each task and after the last, at the end
            one ``Result``.
        """
        try:
            with limited_threads(self.config.threads or torch.get_num_threads()):
                yield from self._messages(stop)
        except NumericalError as error:  # the settings are bad, which is good to know
            yield Result(state="failed", error=say(error), diverged=True)
        except OcarError as error:
            yield Result(state="failed", error=say(error), fatal=True)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other trials go on)
            yield Result(state="failed", error=say(error), details=traceback.format_exc())

    def _messages(self, stop: Stop) -> Iterator[TrialMessage]:
        device = self.config.resolve_device()
        stream = make_config_stream(self.config, device)
        learner = make_config_learner(self.config, device)
        batches, said = operator.length_hint(stream), time.monotonic()
        yield Working(done=0, batches=batches)
        learned, evaluated = None, None
        first, scored = 0, None  # batch of the task, and the last evaluation that counted
        part = max(1, math.ceil(batches / (PARTS * stream.tasks)))
        late = LATE * batches / stream.tasks
        every = self.config.interval
        if every == "task" and not learner.settings.trains_when_asked:
            every = part
        block = 1 if every != 1 else None
        for event in evaluate(learner, stream, every=every, block=block, seed=self.config.seed):
            if isinstance(event, Learned):
                learned = event
                if time.monotonic() - said >= INTERVAL:
                    said = time.monotonic()
                    yield Working(done=event.index + 1, batches=batches)
                if stop():
                    yield Result(state="stopped")
                    return
            elif isinstance(event, Evaluated):
                evaluated = event
                _check(event, learned)
                is_due = scored is None or scored.task < event.task
                if is_due and event.index + 1 - first >= late:
                    scored = event
                    yield _score(event)
            elif isinstance(event, TaskEnded):
                assert evaluated is not None
                is_last = event.task == stream.tasks - 1
                is_due = scored is None or scored.task < event.task
                if is_due or (is_last and scored is not evaluated):
                    scored = evaluated
                    yield _score(evaluated)
                if is_last:
                    break  # what would come now is test data, which is not to be looked at
                first = event.index + 1
        yield Result(state="finished")


def _score(evaluated: Evaluated) -> Scored:
    return Scored(batches=evaluated.index + 1, task=evaluated.task, value=value_of(evaluated))


def value_of(evaluated: Evaluated) -> float:
    """What a trial is judged by: accuracy on all tasks so far, or the sum of both losses so far.

    Args:
        evaluated: The evaluation.
    """
    if evaluated.l_p is None or evaluated.l_s is None:
        return evaluated.accuracy
    return evaluated.l_p + evaluated.l_s


def _check(evaluated: Evaluated, learned: Learned | None) -> None:
    """Refuse what is not finite, of the value and of the last loss.

    Raises:
        NumericalError: The learner has diverged.
    """
    loss = 0.0 if learned is None else float(learned.loss)
    value = value_of(evaluated)
    if not (math.isfinite(loss) and math.isfinite(value)):
        raise NumericalError(
            f"The loss is {loss} and the value {value} after batch {evaluated.index}: the learner "
            "has diverged."
        )
