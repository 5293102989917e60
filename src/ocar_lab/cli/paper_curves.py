"""``ocar paper curves``: validation accuracy over time, from stored runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from ocar.errors import ConfigError, RunError
from ocar.methods.registry import METHODS
from ocar.streams.benchmarks import get_benchmark
from ocar_lab.cli import run as run_command
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.flags import check_names
from ocar_lab.cli.paper_figures import command_line, numbers_file
from ocar_lab.cli.paper_options import CurvesOptions
from ocar_lab.cli.stored import read_folders
from ocar_lab.cli.workers import choose_workers
from ocar_lab.experiment import Job
from ocar_lab.paper.figures import curves, drawing
from ocar_lab.paper.figures.store import Wanted, gather, read_document
from ocar_lab.paper.figures.style import save
from ocar_lab.runs import Run, run_folders

IID = "-iid"

KINDS = {"curves": CurvesOptions}


def main(name: str, arguments: list[str], *, debug: bool) -> int:
    """Draw the curves of some methods.

    Returns:
        0, or 1 if a run failed or was stopped.
    """
    options = parse(KINDS[name], arguments, command=f"ocar paper {name}")
    labels = options.methods
    check_names(options.benchmark, [m for m in labels if m.removesuffix(IID) not in METHODS])
    if get_benchmark(options.benchmark).kind == "regression":
        raise ConfigError(
            f"Invalid --benchmark {options.benchmark}: it has losses and no accuracy, and "
            "ocar paper convex draws them over time. Must be a benchmark with classes."
        )
    stem = options.out / f"curves-{options.benchmark}"
    kept = read_document(numbers_file(stem))["parts"] if numbers_file(stem).exists() else {}
    jobs = _missing(options, _stored(options), kept)
    if jobs:
        workers, _ = choose_workers({}, workers=options.workers, jobs=len(jobs))
        again = shlex.join(["ocar", "paper", name, *arguments])
        code = run_command.do_runs(jobs, workers=workers, again=again, debug=debug)
        if code:
            return code
    chosen = _chosen(options, _stored(options), kept)
    tasks = get_benchmark(options.benchmark).tasks
    wanted = curves.wanted(options.benchmark, chosen, command=command_line(name, arguments))
    own = {
        label: kept[label]["settings"] if label not in chosen else wanted.parts[label]
        for label in labels
    }
    parts = gather(
        numbers_file(stem),
        Wanted(settings=wanted.settings, parts=own, command=wanted.command),
        curves.Curve,
        lambda label: curves.make_curve(chosen[label], tasks=tasks),
    )
    paths = [numbers_file(stem), *save(drawing.draw_curves(options.benchmark, parts), stem)]
    sys.stdout.writelines(f"{path}\n" for path in paths)
    return 0


def _stored(options: CurvesOptions) -> list[Run]:
    """Every run of the benchmark that is stored; those that cannot be read are named."""
    if not options.results.exists():
        return []
    folders = [f for f in run_folders(options.results) if options.benchmark in f.parts]
    runs, errors = read_folders(folders)
    sys.stderr.writelines(f"ocar: {error}\n" for error in errors)
    return runs


def _chosen(
    options: CurvesOptions, runs: Sequence[Run], kept: dict[str, Any]
) -> dict[str, Sequence[Run]]:
    """The runs of each method that has all that is asked for, or none of it in the file."""
    found: dict[str, Sequence[Run]] = {}
    for label in options.methods:
        own = curves.choose(runs, options.benchmark, label, options.seeds)
        if own and (set(options.seeds) <= {run.seed for run in own} or label not in kept):
            found[label] = own
        elif label not in kept:
            raise RunError(f"There is no finished run of {label} in {options.results}.")
    return found


def _missing(options: CurvesOptions, runs: Sequence[Run], kept: dict[str, Any]) -> list[Job]:
    """The runs to make: of a method that has too few seeds, stored or in the file."""
    jobs: list[Job] = []
    for label in options.methods:
        own = curves.choose(runs, options.benchmark, label, options.seeds)
        seeds = set(options.seeds)
        in_file = set(kept.get(label, {}).get("settings", {}).get("seeds", ()))
        if (own and seeds <= {run.seed for run in own}) or (in_file and seeds <= in_file):
            continue
        wanted = {"data_root": options.data_root, "iid": label.endswith(IID)}
        chosen = options.seeds or (0,)
        _, config = choose_workers(wanted, workers=options.workers, jobs=len(chosen))
        method, out = label.removesuffix(IID), options.results
        jobs += run_command.make_jobs(options.benchmark, [method], seeds=chosen, out=out, **config)
    return jobs
