"""One configuration to one run folder, going on where it was left.

:func:`run_events` is a generator: it learns, evaluates and writes the folder, and tells what it
does. A bar, a log or a test listens. A run is at rest, and can be saved, whenever all that it has
learned is evaluated; there it looks whether it should stop. Killed anywhere else it goes on from
its last checkpoint, does the same again, and ends the same.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ocar.config import to_plain
from ocar.errors import CheckpointError, NumericalError
from ocar.evaluate import evaluate
from ocar.events import AtRest, Evaluated, Finished, Learned, TaskEnded
from ocar.experiment.cadence import Cadence
from ocar.experiment.config import RunConfig
from ocar.experiment.events import AlreadyFinished, Recorded, RunEvent, Saved, Started, Stopped
from ocar.experiment.executors.base import never
from ocar.experiment.parts import limited_threads, make_config_learner, make_config_stream
from ocar.runs import Run, RunFolder, describe_process, read_run
from ocar.runs.records import evaluation_record, evaluations, result_record
from ocar.state import with_prefix, without_prefix
from ocar.streams.benchmarks import get_benchmark


def run(
    config: RunConfig,
    *,
    out: Path | str = "runs",
    listen: Callable[[RunEvent], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Run a configuration, or go on with it where it was left.

    Args:
        config: What to run.
        out: Folder for all runs; this one's is below it, named by the configuration.
        listen: Called with every event.
        stop: Asked whenever the run is at rest whether to save and leave.

    Returns:
        The stored run; its ``summary`` is None if it was stopped.

    Raises:
        RunError: Another process works in the folder, or the folder is damaged.
    """
    for event in run_events(config, out=out, stop=stop):
        if listen is not None:
            listen(event)
    return read_run(Path(out) / config.folder())


def run_events(
    config: RunConfig, *, out: Path | str = "runs", stop: Callable[[], bool] | None = None
) -> Iterator[RunEvent]:
    """As :func:`run`, as a generator of what happens.

    Yields:
        ``AlreadyFinished`` alone, or ``Started``, a ``Recorded`` after each evaluation, a
        ``Saved`` after each checkpoint, ``TaskEnded``, and at the end ``Finished`` or ``Stopped``.
    """
    with RunFolder(Path(out) / config.folder()) as folder:
        device = config.resolve_device()
        process = describe_process(device)
        document = folder.describe(_document(config, process))
        if read_run(folder.path).summary is not None:
            yield AlreadyFinished(path=folder.path)
            return
        with limited_threads(document["threads"]):
            try:
                session = _Session(config, folder, device)
                folder.begin_session({**process, "batch": session.position})
                yield from session.events(stop or never)
            except (GeneratorExit, KeyboardInterrupt):
                if folder.state != "finished":
                    folder.set_status("stopped")
                raise
            except BaseException as error:
                with suppress(OSError):  # the disk may be what failed
                    folder.set_status("failed", error=f"{type(error).__name__}: {error}")
                raise


class _Session:
    """What one process does of a run."""

    def __init__(self, config: RunConfig, folder: RunFolder, device: torch.device) -> None:
        self.config = config
        self.folder = folder
        self.stream = make_config_stream(config, device)
        self.learner = make_config_learner(config, device)
        self.history: tuple[Evaluated, ...] = ()
        self.position = 0
        self._saved = 0
        self.cadence = Cadence(config.checkpoint_every)
        restored = folder.restore()
        if restored is not None:
            tensors, values, records = restored
            self._load(tensors, values)
            self.history = evaluations(records)
            self._saved = self.position
            self.cadence.note(self.position - 1)

    def events(self, stop: Callable[[], bool]) -> Iterator[RunEvent]:
        """Go through what is left of the stream."""
        yield Started(
            path=self.folder.path,
            batches=operator.length_hint(self.stream),
            position=self.position,
            history=self.history,
        )
        learned: dict[int, Learned] = {}
        regression = get_benchmark(self.config.benchmark).kind == "regression"
        loop = evaluate(
            self.learner,
            self.stream,
            every=self.config.interval,
            history=self.history,
            online=self.config.online,
            probe=self.config.probe and not regression,
            seed=self.config.seed,
        )
        for event in loop:
            if isinstance(event, Learned):
                learned[event.index] = event
            elif isinstance(event, Evaluated):
                # None of a batch that was only remembered: a line never depends on what came
                # before its batch, which a run that goes on does not know.
                yield self._record(event, learned.get(event.index))
            elif isinstance(event, AtRest):
                learned.clear()
                stopping = stop()
                if stopping or self.cadence.is_due(event.index):
                    yield self._save("stopped" if stopping else "running")
                if stopping:
                    yield Stopped(index=event.index)
                    return
            elif isinstance(event, TaskEnded):
                yield event
                if event.task == self.stream.tasks - 1 and self._saved < self.position:
                    yield self._save("running")  # test data and the probe can take long
            elif isinstance(event, Finished):
                # With the result the run counts as finished, so its last state is to be there.
                if self._saved < self.position:
                    yield self._save("running")
                self.folder.append(result_record(event))
                self.folder.set_status(
                    "finished", learned=self.learner.batches, steps=self.learner.steps
                )
                yield event

    def _record(self, event: Evaluated, learned: Learned | None) -> Recorded:
        reported = {} if learned is None else _reported(learned)
        self.folder.append(evaluation_record(event, reported))
        self.position = event.index + 1
        if not math.isfinite(reported.get("loss", 0.0)):
            raise NumericalError(
                f"The loss is {reported['loss']} at batch {event.index}: the learner has "
                "diverged. Try a smaller learning rate."
            )
        return Recorded(evaluated=event, reported=reported)

    def _save(self, state: str) -> Saved:
        start = time.perf_counter()
        tensors, values = self.learner.state()
        place = {"position": self.position, "stream": dict(self.stream.state_dict())}
        self.folder.save(with_prefix("learner", tensors), {"learner": values, **place})
        self.folder.set_status(state, batch=self.position)
        seconds = time.perf_counter() - start
        self.cadence.note(self.position - 1, cost=seconds)
        self._saved = self.position
        return Saved(index=self.position - 1, seconds=seconds)

    def _load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        try:
            self.learner.load_state(without_prefix("learner", tensors), values["learner"])
            self.stream.load_state_dict(values["stream"])
            self.position = int(values["position"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.folder.path} has a damaged checkpoint: {error}"
            ) from error


def _reported(learned: Learned) -> dict[str, float]:
    """What the learner said, as numbers; this waits for the device."""
    report = learned.report
    own = {"loss": float(learned.loss), "classes": getattr(report, "classes", 0)}
    return own | dict(getattr(report, "values", {}))


def _document(config: RunConfig, process: Mapping[str, Any]) -> dict[str, Any]:
    """What ``config.json`` says."""
    given = to_plain(config)
    given["data_root"] = None if config.data_root is None else str(config.data_root)
    return {
        "config": config.identity(),
        "seed": config.seed,
        "label": config.label,
        "hash": config.hash(),
        "changed": config.changed(),
        "given": given,
        "threads": config.threads or torch.get_num_threads(),
        **process,
    }
