"""One trial: a run that is scored late in each task, and writes no folder."""

from __future__ import annotations

import math
import operator
import time
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
from ocar_lab.plugins import load_plugins
from ocar_lab.tune.events import Moved

PARTS = 8
"""Evaluations for each task, about."""

LATE = 0.5
"""Share of a task of mean length after which a trial is scored.

Soon after a task begins, the best values are those of trials that learn fast, not of trials that
forget little."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A trial has been evaluated, late in a task or after the last one."""

    batches: int  # learned so far
    task: int
    value: float  # validation accuracy on all tasks so far, or L_p + L_s so far


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A trial is finished; its last score is its value."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A trial has failed for a known reason; for any other the work raises.

    The reason is ``settings`` if they make learning diverge, ``setup`` if all trials would fail, as
    without data.
    """

    error: str
    reason: Literal["settings", "setup"]


TrialMessage = Moved | Scored | Finished | Failed


def is_scored(message: object) -> bool:
    """Whether a message shows that a trial has trained and been evaluated."""
    return isinstance(message, Scored)


@dataclass(frozen=True, kw_only=True)
class TrialWork:
    """The work of one trial."""

    config: RunConfig
    number: int = 0

    def __call__(self, stop: Stop) -> Iterator[TrialMessage]:
        """Learn and yield messages; ``stop`` is asked after each batch.

        Yields:
            ``Moved`` now and then, ``Scored`` late in each task and after the last one, at the
            end ``Finished`` or ``Failed``; neither after a request to stop.
        """
        try:
            load_plugins(self.config.plugins)
            with limited_threads(self.config.threads or torch.get_num_threads()):
                yield from self._messages(stop)
        except NumericalError as error:
            yield Failed(error=say(error), reason="settings")
        except OcarError as error:
            yield Failed(error=say(error), reason="setup")

    def _messages(self, stop: Stop) -> Iterator[TrialMessage]:
        device = self.config.resolve_device()
        stream = make_config_stream(self.config, device)
        learner = make_config_learner(self.config, device)
        batches, said = operator.length_hint(stream), time.monotonic()
        yield Moved(number=self.number, batches=batches)
        learned, evaluated = None, None
        begun = 0  # first batch of the task
        scored: Evaluated | None = None
        late = LATE * batches / stream.tasks
        every = self.config.interval
        if every == "task" and not learner.settings.trains_when_asked:
            every = max(1, math.ceil(batches / (PARTS * stream.tasks)))
        block = 1 if every != 1 else None

        def is_due(task: int) -> bool:
            return scored is None or scored.task < task

        for event in evaluate(learner, stream, every=every, block=block, seed=self.config.seed):
            if isinstance(event, Learned):
                learned = event
                if time.monotonic() - said >= INTERVAL:
                    said = time.monotonic()
                    yield Moved(number=self.number, done=event.index + 1, batches=batches)
                if stop():
                    return
            elif isinstance(event, Evaluated):
                evaluated = event
                _check(event, learned)
                if is_due(event.task) and event.index + 1 - begun >= late:
                    scored = event
                    yield _score(event)
            elif isinstance(event, TaskEnded):
                assert evaluated is not None
                last = event.task == stream.tasks - 1
                if is_due(event.task) or (last and scored is not evaluated):
                    scored = evaluated
                    yield _score(evaluated)
                if last:
                    yield Finished()
                    return  # before the test data is used
                begun = event.index + 1


def _score(evaluated: Evaluated) -> Scored:
    return Scored(batches=evaluated.index + 1, task=evaluated.task, value=value_of(evaluated))


def value_of(evaluated: Evaluated) -> float:
    """The value of a trial: accuracy on all tasks so far, or the sum of both losses so far."""
    if evaluated.l_p is None or evaluated.l_s is None:
        return evaluated.accuracy
    return evaluated.l_p + evaluated.l_s


def _check(evaluated: Evaluated, learned: Learned | None) -> None:
    """Raise if the value or the last loss is not finite."""
    loss = 0.0 if learned is None else float(learned.loss)
    value = value_of(evaluated)
    if not (math.isfinite(loss) and math.isfinite(value)):
        raise NumericalError(
            f"The loss is {loss} and the value {value} after batch {evaluated.index}: the learner "
            "has diverged."
        )
