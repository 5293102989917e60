"""``ocar run``: methods on a benchmark, seed by seed, each run in its own folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocar.config import require
from ocar.errors import ConfigError
from ocar_lab.cli.arguments import command_line, require_folder
from ocar_lab.cli.flags import Call, parse_call
from ocar_lab.cli.running import do_runs, stored
from ocar_lab.cli.tables import print_runs
from ocar_lab.cli.workers import choose_workers
from ocar_lab.experiment import Job, RunConfig
from ocar_lab.experiment.config import method_name
from ocar_lab.experiment.executors import Workers
from ocar_lab.experiment.trackers import TrackerName
from ocar_lab.tune.preset import read_preset

CONFIGURATION, NO_FLAGS = RunConfig, ("seed", "plugins")
"""Its fields are flags too, except these."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run methods on a benchmark.

    An interrupted run resumes where it was; a finished run is not run again. Every setting of a
    method is a flag: --help after the names lists them.
    """

    seeds: tuple[int, ...] = (0,)
    """Seeds; one run each."""

    out: Path = Path("runs")
    """Folder for the runs."""

    preset: Path | None = None
    """A file with the settings of a method, as ocar tune writes it; flags take precedence."""

    workers: int | None = None
    """Runs at a time; by default one process for each core, on a GPU a thread for each run, on a
    Ray cluster as many as it has room for."""

    ray: str | None = None
    """Run on the Ray cluster at this address; auto for the one of this machine. Its nodes need the
    data and a shared folder for the runs."""

    gpus_per_run: float = 0.0
    """GPUs of the Ray cluster for each run; fractions are allowed."""

    ranks: int = 1
    """Processes that learn each run together, each a share of every batch; on GPUs one a GPU. Runs
    are done one after another. If a process dies, all resume from the last checkpoint."""

    tracker: TrackerName | None = None
    """Also write to TensorBoard (tensorboard/ in each run's folder), MLflow (mlflow.db beside the
    runs, or the server of MLFLOW_TRACKING_URI), or Weights & Biases (wandb/ in each run's
    folder, offline unless WANDB_MODE says otherwise)."""

    def __post_init__(self) -> None:
        distinct = len(set(self.seeds)) == len(self.seeds) > 0
        require("seeds", self.seeds, distinct, "one or more different numbers")
        require_folder("--out", self.out)
        require("ranks", self.ranks, self.ranks >= 1, "at least 1")
        if self.ranks > 1 and (self.ray is not None or self.workers is not None):
            raise ConfigError("Invalid --ranks with --workers or --ray. Give one of them.")


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Run what the arguments say; 0 if every run is finished."""
    jobs, workers, notes = plan(arguments)
    sys.stderr.writelines(notes)
    again = command_line(command, arguments)
    if workers.ranks > 1:
        from ocar_lab.cli.run_ranks import run_on_ranks

        code = run_on_ranks(jobs, workers.ranks, again=again, debug=debug)
    else:
        code = do_runs(jobs, workers=workers, again=again, debug=debug)
    print_runs(stored(jobs))
    return code


def plan(arguments: Sequence[str]) -> tuple[list[Job], Workers, list[str]]:
    """The runs that the arguments ask for, who does them, and notes for the user."""
    call = parse_call(
        Options,
        CONFIGURATION,
        arguments,
        command="ocar run",
        usage="ocar run BENCHMARK METHOD [METHOD ...]",
        without=NO_FLAGS,
    )
    options = call.options
    settings, notes = with_preset(call)
    workers, config = choose_workers(
        call.config,
        workers=options.workers if options.ranks == 1 else options.ranks,
        jobs=len(call.methods) * len(options.seeds) if options.ranks == 1 else None,
        ray=options.ray,
        gpus=options.gpus_per_run,
        flag="--gpus-per-run",
    )
    jobs = make_jobs(
        call.benchmark,
        call.methods,
        seeds=options.seeds,
        out=options.out if options.ray is None else options.out.absolute(),
        settings=settings,
        tracker=options.tracker,
        **config,
    )
    if options.ray is None:
        jobs[0].config.resolve_device()  # a missing GPU is a wrong call, not a failed run
    if options.ranks > 1:
        workers = Workers(ranks=options.ranks)
    return jobs, workers, [*notes, *_interval_notes(jobs)]


def make_jobs(
    benchmark: str,
    methods: Sequence[str],
    *,
    seeds: Sequence[int],
    out: Path,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    tracker: TrackerName | None = None,
    **config: Any,
) -> list[Job]:
    """One job for each seed and method."""
    given = settings or {}
    return [
        Job(
            config=RunConfig(
                benchmark=benchmark,
                method=method,
                settings=given.get(method, {}),
                seed=seed,
                **config,
            ),
            out=out,
            tracker=tracker,
        )
        for seed in seeds
        for method in methods
    ]


def with_preset(call: Call[Options]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The settings of each method: those of the preset file below those of the flags.

    With them comes a note if the preset is for another benchmark.
    """
    path = call.options.preset
    if path is None:
        return call.settings, []
    preset = read_preset(path)
    names = {method_name(method, call.config.get("transform")): method for method in call.methods}
    if preset.name not in names:
        raise ConfigError(
            f"Invalid --preset {path}: it is for {preset.name}, which is not run here "
            f"({', '.join(names)})."
        )
    method = names[preset.name]
    merged = {**call.settings, method: {**preset.settings, **call.settings[method]}}
    if preset.benchmark == call.benchmark:
        return merged, []
    return merged, [f"{path} was found on {preset.benchmark}, not on {call.benchmark}.\n"]


def _interval_notes(jobs: Sequence[Job]) -> list[str]:
    """A line for each method that is not evaluated after every batch by default."""
    configs = [job.config for job in jobs]
    rare = dict.fromkeys(c.label for c in configs if c.every is None and c.interval == "task")
    return [
        f"{label} trains from scratch for every evaluation, so it is evaluated after each task "
        "only, and so are AAA and WC-Acc. --every 1 evaluates after every batch.\n"
        for label in rare
    ]
