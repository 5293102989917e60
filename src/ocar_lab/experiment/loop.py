"""One configuration to one run folder, which is resumed where it was left.

:func:`run_events` is a generator: it learns, evaluates, writes the folder and yields events, which
a progress bar, a log or a test consumes. A run is idle, and can be saved or stopped, whenever all
that it has learned is evaluated. A run that is killed resumes from its last checkpoint, repeats
what was lost, and ends the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ocar.accel import Ranks
from ocar.config import to_plain
from ocar.errors import RunError
from ocar.evaluate.loop import take_batch
from ocar.streams.benchmarks import get_benchmark
from ocar_lab.experiment.config import RunConfig
from ocar_lab.experiment.determinism import deterministic_algorithms
from ocar_lab.experiment.events import AlreadyFinished, RunEvent
from ocar_lab.experiment.executors.base import never
from ocar_lab.experiment.parts import (
    find_device,
    limited_threads,
    make_config_learner,
    make_config_stream,
)
from ocar_lab.experiment.session import Session, restore_rank
from ocar_lab.optional import needed
from ocar_lab.plugins import load_plugins
from ocar_lab.runs import Run, RunFolder, describe_process, is_finished, read_run


def run(
    config: RunConfig,
    *,
    out: Path | str = "runs",
    listen: Callable[[RunEvent], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Run a configuration, or resume it.

    Args:
        config: What to run.
        out: Folder of all runs; the configuration names the run's folder in it.
        listen: Called with every event.
        stop: Asked whether to save and leave, whenever the run is idle.

    Returns:
        The stored run; its ``summary`` is None if it was stopped.

    Raises:
        RunError: Another process works in the folder, or the folder is damaged.
        MissingPackageError: The stored run could not be read.
    """
    with needed("Reading a run", "polars", extra="cli"):  # now, not when the run is finished
        import polars  # noqa: F401
    for event in run_events(config, out=out, stop=stop):
        if listen is not None:
            listen(event)
    return read_run(Path(out) / config.folder())


def run_events(
    config: RunConfig,
    *,
    out: Path | str = "runs",
    stop: Callable[[], bool] | None = None,
    others: int | None = 0,
    ranks: Ranks | None = None,
) -> Generator[RunEvent, None, None]:
    """As :func:`run`, as a generator of events.

    ``others`` is the number of other runs at the same time, for the record; None if unknown. Of
    several ``ranks`` the first calls this, and the others :func:`follow_run`.

    Yields:
        Either only ``AlreadyFinished``, or ``Started``, then ``Recorded`` for each evaluation,
        ``Saved`` for each checkpoint, ``TaskEnded``, and last ``Finished`` or ``Stopped``.
    """
    load_plugins(config.plugins)  # in a worker, where the configuration was unpickled
    regression = get_benchmark(config.benchmark).kind == "regression"
    with RunFolder(Path(out) / config.folder()) as folder:
        device = find_device(config, ranks)
        process = describe_process(device)
        document = folder.describe(_document(config, process))
        if is_finished(folder.path):
            yield AlreadyFinished(path=folder.path)
            return
        repeatable = deterministic_algorithms(config.deterministic)
        with limited_threads(document["threads"]), repeatable:
            try:
                session = Session(
                    folder,
                    stream=make_config_stream(config, device),
                    learner=make_config_learner(config, device, ranks),
                    every=config.interval,
                    online=config.online,
                    probe=config.probe and not regression,
                    seed=config.seed,
                    checkpoint_every=config.checkpoint_every,
                )
                folder.begin_session(
                    {**process, "beside": others, "batch": session.position},
                    batches=operator.length_hint(session.stream),
                )
                yield from session.events(stop or never)
            except (GeneratorExit, KeyboardInterrupt):
                if folder.state != "finished":
                    folder.set_status("stopped")
                raise
            except BaseException as error:
                with suppress(OSError, RunError):  # perhaps the disk has failed
                    folder.set_status("failed", error=f"{type(error).__name__}: {error}")
                raise


def follow_run(config: RunConfig, ranks: Ranks) -> None:
    """Learn a share of every batch of a run that the first rank evaluates and stores."""
    load_plugins(config.plugins)
    device = find_device(config, ranks)
    threads = limited_threads(config.threads or torch.get_num_threads())
    with threads, deterministic_algorithms(config.deterministic):
        learner = make_config_learner(config, device, ranks)
        stream = make_config_stream(config, device)
        restore_rank(learner, stream)
        for batch in stream:
            take_batch(learner, stream, batch)


def _document(config: RunConfig, process: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``config.json``."""
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
