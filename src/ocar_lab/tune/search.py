"""The search: draws trials, has them done, learns from them, until there are enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ocar.errors import OcarError, RunError
from ocar_lab.experiment.executors import Executor, Over, Stop
from ocar_lab.experiment.executors.base import never
from ocar_lab.tune.preset import Preset, write_preset
from ocar_lab.tune.study import Study, Trial
from ocar_lab.tune.trial import Result, Scored, TrialMessage, TrialWork, Working

MOST_FAILURES = 10
"""If the first so many trials all fail, it is not their settings."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A trial has begun."""

    trial: Trial
    """The trial."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A trial has moved on."""

    number: int
    """Its number."""

    done: int
    """Batches done."""

    batches: int
    """Batches in all; 0 if not known."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trial is over."""

    trial: Trial
    """The trial, with all that is known of it."""

    best: Trial | None
    """The best one so far."""

    details: str = ""
    """The traceback, if it failed and there is one."""


SearchEvent = Begun | Moved | Ended


def search(
    study: Study, executor: Executor, *, trials: int = 100, stop: Stop = never
) -> Iterator[SearchEvent]:
    """Go on with a study until it has so many trials.

    A trial whose worker dies counts as failed. One that is cut short by a request to stop does
    not count.

    Args:
        study: The study, entered.
        executor: Who does the trials.
        trials: How many there are to be, those done before included.
        stop: Asked often whether to leave.

    Yields:
        What happens.

    Raises:
        OcarError: Trials fail for a reason that is not their settings.
    """
    running: dict[int, _Running] = {}
    stopping = False
    with executor:
        while True:
            if not stopping and stop():
                stopping = True
                for number in running:
                    executor.ask_to_stop(number)
            while not stopping and executor.room > 0 and len(study.trials()) < trials:
                trial = study.ask()
                running[trial.number] = _Running()
                work = TrialWork(config=study.config.run_config(trial.settings))
                executor.submit(trial.number, work)
                yield Begun(trial=trial)
            if not running:
                return
            for heard in executor.listen():
                if isinstance(heard, Over):
                    ended = _end(study, heard, running.pop(heard.job))
                    if ended is not None:
                        yield ended
                else:
                    yield from _hear(study, executor, heard.job, heard.message, running)


@dataclass
class _Running:
    """What is known of a trial that is under way."""

    scores: dict[int, float] = field(default_factory=dict)
    pruned: bool = False
    result: Result | None = None


def _hear(
    study: Study,
    executor: Executor,
    number: int,
    message: TrialMessage,
    running: dict[int, _Running],
) -> Iterator[SearchEvent]:
    """Take in a message of a trial."""
    trial = running[number]
    if isinstance(message, Working):
        yield Moved(number=number, done=message.done, batches=message.batches)
    elif isinstance(message, Scored):
        trial.scores[message.batches] = message.value
        if study.report(number, message):
            trial.pruned = True
            executor.ask_to_stop(number)
    else:
        trial.result = message


def _end(study: Study, over: Over, trial: _Running) -> Ended | None:
    """Write down how a trial ended.

    Returns:
        What to tell; None if it was cut short and does not count.

    Raises:
        OcarError: Other trials would fail in the same way.
    """
    number, result = over.job, trial.result
    if result is None:
        # Without an error it was asked to stop before it had begun.
        result = Result(
            state="failed" if over.error else "stopped", error=over.error, details=over.details
        )
    if result.fatal:
        study.forget(number)
        raise OcarError(result.error)
    if result.state == "finished":
        study.finish(number, trial.scores[max(trial.scores)])
    elif result.state == "failed":
        study.fail(number, result.error, diverged=result.diverged)
    elif trial.pruned:
        study.prune(number)
    else:
        study.forget(number)
        return None
    return _judge(study, number, result)


def _judge(study: Study, number: int, result: Result) -> Ended:
    """Keep the best settings so far; give up if nothing works at all."""
    trials, ranking = study.trials(), study.ranking()
    failed = [trial for trial in trials if trial.state == "failed"]
    ended = [trial for trial in trials if trial.state != "running"]
    if len(failed) == len(ended) >= MOST_FAILURES:
        raise RunError(f"All of {len(failed)} trials failed, the last one with: {result.error}")
    best = ranking[0] if ranking else None
    if best is not None:
        write_preset(study.preset_path, preset_of(study, best))
    trial = next(trial for trial in trials if trial.number == number)
    return Ended(trial=trial, best=best, details=result.details)


def preset_of(study: Study, trial: Trial) -> Preset:
    """The settings of a trial, as a preset.

    Args:
        study: The study.
        trial: One of its trials.
    """
    config = study.config
    return Preset(
        benchmark=config.benchmark,
        method=config.method,
        transform=config.transform,
        settings={**config.settings, **trial.settings},
        found={
            "objective": config.objective,
            "value": trial.value,
            "trial": trial.number,
            "trials": sum(other.state != "running" for other in study.trials()),
            "seed": config.seed,
        },
    )
