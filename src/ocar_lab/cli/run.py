"""``ocar run``: methods on a benchmark, seed by seed, each run in a folder of its own."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ocar.errors import ConfigError
from ocar.methods.registry import METHODS
from ocar.streams.benchmarks import BENCHMARKS
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.flags import defaults, find_transform, flags_type, method_settings, with_flags
from ocar_lab.cli.preset import with_preset
from ocar_lab.cli.progress import make_display
from ocar_lab.cli.stopping import StopRequest
from ocar_lab.cli.tables import print_runs
from ocar_lab.cli.workers import (
    check_workers,
    cluster_device,
    cores,
    make_workers,
    usual_workers,
)
from ocar_lab.experiment import Ended, Job, RunConfig, run_many
from ocar_lab.experiment.executors import Workers
from ocar_lab.runs import Run, read_run
from ocar_lab.runs.folder import CONFIG

USAGE = "ocar run BENCHMARK METHOD [METHOD ...]"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run methods on a benchmark.

    A run that was interrupted goes on where it was; one that is finished is not run again. Every
    setting of a method is a flag: ``--help`` after the names lists them.
    """

    seeds: tuple[int, ...] = (0,)
    """Seeds; one run each."""

    data_root: Path | None = None
    """Where the data sets are; by default OCAR_DATA or the user's data folder."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto is the GPU if there is one."""

    out: Path = Path("runs")
    """Folder for the runs."""

    preset: Path | None = None
    """A file with the settings of a method, as ocar tune writes it; flags go before it."""

    transform: str | None = None
    """Gradient transform to use with the method's loss, such as ocar."""

    iid: bool = False
    """All classes in one task, the upper reference."""

    blurry: float = 0.0
    """Part of each task's samples that change places with other tasks'."""

    every: int | Literal["task"] | None = None
    """Evaluate after every so many batches, or after each task; by default after every batch, the
    protocol's, but after each task where a method trains for a prediction."""

    online: bool = False
    """Also predict each batch before it is learned."""

    probe: bool = True
    """At the end, also fit a linear classifier on the features (Probed Acc)."""

    max_tasks: int | None = None
    """Stop after so many tasks."""

    max_batches: int | None = None
    """Stop after so many batches."""

    workers: int | None = None
    """Runs side by side; by default one for each core, each in a process, or on a GPU all, each
    in a thread, or on a Ray cluster as many as it has room for."""

    ray: str | None = None
    """Do the runs on the Ray cluster at this address, auto for the one of this machine. Its nodes
    need the data, and all of them a folder for the runs that they share."""

    gpus_per_run: float = 0.0
    """GPUs of the Ray cluster for each run; a part of one is allowed."""

    capture: bool = True
    """On a GPU, capture the steps as CUDA graphs: the same up to rounding, many times faster."""

    deterministic: bool = False
    """On a GPU, use only algorithms that give the same to the bit each time. A CPU always does."""

    guard: bool = True
    """Back off from batches that would spoil the learner, and say so."""

    threads: int | None = None
    """Threads of each run on the CPU; by default the cores shared among the workers, and one on a
    Ray cluster."""

    checkpoint_every: int | None = None
    """Save after so many batches; by default as often as costs less than 2 % of the time."""

    tensorboard: bool = False
    """Write for TensorBoard too, into each run's folder."""


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Run what the arguments say.

    Returns:
        0 if every run is finished, else 1.
    """
    benchmark, methods, rest = split_names(arguments)
    if not methods:
        parse(Options, rest, command=USAGE)  # prints the help or says what is wrong
        raise ConfigError(f"A benchmark and a method are needed: {USAGE}")
    check_names(benchmark, methods)
    options, settings = _parse_options(benchmark, methods, rest)
    settings, notes = with_preset(options.preset, benchmark, methods, options.transform, settings)
    jobs = make_jobs(benchmark, methods, options, settings)
    workers = choose_workers(options, len(jobs))
    sys.stderr.writelines([*notes, *_notes(jobs)])
    again = shlex.join(["ocar", command, *arguments])
    code = do_runs(jobs, workers=workers, again=again, debug=debug)
    print_runs(stored(jobs))
    return code


def stored(jobs: Sequence[Job]) -> list[Run]:
    """The runs of some jobs, as far as they have been begun."""
    folders = [job.out / job.config.folder() for job in jobs]
    return [read_run(folder) for folder in folders if (folder / CONFIG).exists()]


def _notes(jobs: Sequence[Job]) -> list[str]:
    """What is not as one may think: methods that are not evaluated after every batch."""
    rare = dict.fromkeys(j.config.label for j in jobs if _is_rare(j.config))
    return [
        f"{label} trains anew for every evaluation, so there is one after each task only, and AAA "
        "and WC-Acc are of these. --every 1 evaluates after every batch.\n"
        for label in rare
    ]


def _is_rare(config: RunConfig) -> bool:
    return config.every is None and config.interval == "task"


def split_names(arguments: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Benchmark, methods and the rest; the names come first.

    Args:
        arguments: What comes after the command.
    """
    count = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    names = list(arguments[:count])
    return (names[0] if names else ""), names[1:], list(arguments[count:])


def check_names(benchmark: str, methods: Sequence[str]) -> None:
    """Refuse names that there are not.

    Args:
        benchmark: Name of a benchmark.
        methods: Names of methods.

    Raises:
        ConfigError: One is unknown, or a method is named twice.
    """
    if benchmark not in BENCHMARKS:
        raise ConfigError(f"Unknown benchmark {benchmark!r}. There are {', '.join(BENCHMARKS)}.")
    for method in methods:
        if method not in METHODS:
            raise ConfigError(f"Unknown method {method!r}. There are {', '.join(METHODS)}.")
    if len(set(methods)) < len(methods):
        raise ConfigError(f"Invalid methods {' '.join(methods)}. Each can be named once.")


def _parse_options(
    benchmark: str, methods: Sequence[str], arguments: Sequence[str]
) -> tuple[Options, dict[str, dict[str, Any]]]:
    """The options, and the settings that were given, by method."""
    transform = find_transform(arguments)
    settings = {method: method_settings(method, transform=transform) for method in methods}
    values = {
        method: defaults(benchmark, method, transform, own) for method, own in settings.items()
    }
    kind = with_flags(Options, flags_type(settings, values))
    command = " ".join(["ocar run", benchmark, *methods])
    parsed = parse(kind, arguments, command=command)
    options = Options(**{f.name: getattr(parsed, f.name) for f in dataclasses.fields(Options)})
    given = {
        method: {name: value for name, value in parsed.settings.items() if name in own}
        for method, own in settings.items()
    }
    return options, given


def make_jobs(
    benchmark: str,
    methods: Sequence[str],
    options: Options,
    settings: dict[str, dict[str, Any]],
) -> list[Job]:
    """One job for each seed and method."""
    on_cluster = options.ray is not None
    workers = choose_workers(options, len(methods) * len(options.seeds))
    threads = options.threads or (1 if on_cluster else max(1, cores() // (workers.count or 1)))
    device = options.device
    if on_cluster:
        device = cluster_device(device, options.gpus_per_run, flag="--gpus-per-run")
    out = options.out.absolute() if on_cluster else options.out
    jobs = []
    for seed in options.seeds:
        for method in methods:
            config = RunConfig(
                benchmark=benchmark,
                method=method,
                transform=options.transform,
                settings=settings.get(method, {}),
                seed=seed,
                iid=options.iid,
                blurry=options.blurry,
                every=options.every,
                online=options.online,
                probe=options.probe,
                max_tasks=options.max_tasks,
                max_batches=options.max_batches,
                device=device,
                capture=options.capture,
                deterministic=options.deterministic,
                guard=options.guard,
                threads=threads,
                checkpoint_every=options.checkpoint_every,
                data_root=options.data_root,
            )
            if not on_cluster:
                config.resolve_device()  # now, while it is a wrong call and not a failed run
            jobs.append(Job(config=config, out=out, tensorboard=options.tensorboard))
    return jobs


def choose_workers(options: Options, jobs: int) -> Workers:
    """How many runs to do side by side, and where."""
    check_workers(options.workers)
    workers = options.workers
    if workers is None and options.ray is None:
        workers = usual_workers(options.device, jobs)
    return make_workers(
        None if workers is None else min(workers, jobs),
        ray=options.ray,
        gpus=options.gpus_per_run,
        threads=options.threads or 1,
        flag="--gpus-per-run",
    )


def do_runs(jobs: Sequence[Job], *, workers: Workers, again: str, debug: bool) -> int:
    """Do some runs and show how they go.

    Args:
        jobs: The runs.
        workers: How many side by side, and where.
        again: The command that goes on with them.
        debug: Show the traceback of a run that fails.

    Returns:
        0 if every run is finished, else 1.
    """
    labels = _labels(jobs)
    endings: dict[int, Ended] = {}
    announced = False
    with make_display(labels) as display, StopRequest() as stop:
        for message in run_many(jobs, workers=workers, stop=stop):
            display.show(message)
            if isinstance(message, Ended):
                endings[message.job] = message
                if message.state == "failed":
                    text = message.details if debug else message.error
                    display.note(f"ocar: {labels[message.job]} failed: {text}")
            if stop() and not announced:
                announced = True
                display.note("Stopping: each run is saved as soon as its batch is done.")
    if stop():
        sys.stderr.write(f"Stopped. The same command goes on:\n  {again}\n")
    done = [e for e in endings.values() if e.state in ("finished", "already finished")]
    return 0 if len(done) == len(jobs) else 1


def _labels(jobs: Sequence[Job]) -> list[str]:
    width = max(len(job.config.label) for job in jobs)
    return [f"{job.config.label:{width}} seed {job.config.seed}" for job in jobs]
