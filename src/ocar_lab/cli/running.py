"""Runs by whichever workers, with their progress, and what is stored of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ocar_lab.cli.progress import RunDisplay
from ocar_lab.cli.stopping import StopRequest
from ocar_lab.cli.time_left import TimeLeft
from ocar_lab.experiment import Ended, Job, Progress, run_many
from ocar_lab.experiment.executors import Workers
from ocar_lab.runs import Run, read_folders
from ocar_lab.runs.folder import CONFIG


def do_runs(
    jobs: Sequence[Job], *, workers: Workers, again: str, debug: bool, suggest: bool = True
) -> int:
    """Do some runs and show their progress.

    Args:
        jobs: The runs.
        workers: Who does them.
        again: The command that resumes them.
        debug: Show the traceback of a failure.
        suggest: Mention ``--every`` where evaluation takes most of the time.

    Returns:
        0 if every run is finished, else 1.
    """
    names = _names(jobs)
    width = max(map(len, names))
    pairs = zip(names, jobs, strict=True)
    labels = [f"{name:{width}} seed {job.config.seed}" for name, job in pairs]
    finished, announced, suggested = 0, False, not suggest
    left = TimeLeft(names, workers=workers.count)
    with RunDisplay(labels, left) as display, StopRequest() as stop:
        for message in run_many(jobs, workers=workers, stop=stop):
            left.follow(message)
            display.show(message)
            if isinstance(message, Progress) and not suggested:
                every = jobs[message.job].config.interval
                hint = "" if every == "task" else left.suggest_every(message, every)
                suggested = bool(hint)
                if hint:
                    display.note(hint)
            if isinstance(message, Ended):
                finished += message.finished
                if message.state == "failed":
                    text = message.details if debug else message.error
                    display.note(f"ocar: {labels[message.job]} failed: {text}")
            if stop() and not announced:
                announced = True
                display.note("Stopping: each run is saved as soon as its batch is done.")
    if stop():
        sys.stderr.write(f"Stopped. The same command resumes:\n  {again}\n")
    return 0 if finished == len(jobs) else 1


def _names(jobs: Sequence[Job]) -> list[str]:
    """The method of each run; the benchmark and the hash too, where several share a label."""
    configs = [job.config for job in jobs]
    several = len({config.benchmark for config in configs}) > 1
    names = [f"{c.benchmark} {c.label}" if several else c.label for c in configs]
    hashes: dict[str, set[str]] = {}
    for name, config in zip(names, configs, strict=True):
        hashes.setdefault(name, set()).add(config.hash())
    return [
        f"{name} {config.hash()}" if len(hashes[name]) > 1 else name
        for name, config in zip(names, configs, strict=True)
    ]


def stored(jobs: Sequence[Job]) -> list[Run]:
    """The runs of some jobs that have begun, without those whose folder is damaged."""
    folders = [job.out / job.config.folder() for job in jobs]
    return read_folders([folder for folder in folders if (folder / CONFIG).exists()])[0]
