"""``ocar paper NAME``: the paper's tables and figures.

To add a figure: a line in ``FIGURES``, and a module in :mod:`ocar_lab.paper.figures`.
"""

from __future__ import annotations

import importlib
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ocar.errors import ConfigError, RunError
from ocar.registry import unknown
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.paper_tables import show_table
from ocar_lab.cli.tables import print_errors
from ocar_lab.runs import Run, read_folders, run_folders
from ocar_lab.runs.command import without_options

if TYPE_CHECKING:
    from ocar_lab.experiment import Job
    from ocar_lab.paper.figures.curves import Options as CurvesOptions
    from ocar_lab.paper.figures.setup import Listen

TABLES = {
    "table1": "Table 1: all methods on Split-CIFAR100 or Split-TinyImageNet",
    "clear": "Table 2: Online CLEAR, and PACS as a stand-in",
    "times": "Table 3: training time for the first task",
    "check": "every claim of the paper's text: whether it holds here, with the numbers",
}

FIGURES = {
    "convex": "ER, EWC, NGD and OCAR on the convex stream: L_p and L_s",
    "landscape": "paths through the loss landscape, and learning curves",
    "grid": "accuracy, forgetting and plasticity over α and α/τ",
    "steps": "effective step size against eigenvalue",
    "spectrum": "eigenvalues of the damped curvature on a run",
    "ratio": "ratio of gradient norms over the stream, with a small τ",
}
"""Figures by the name of their module."""

CURVES = {"curves": "validation accuracy over time, with the spread over seeds"}
"""A figure of stored runs."""

NAMES = TABLES | FIGURES | CURVES

ALIASES = {"table2": "clear", "table3": "times"}

FOLDERS = ("--out", "--results", "--data-root")
"""Options that name a folder, which the numbers do not depend on."""

IID = "-iid"


def usage() -> str:
    """The text of ``ocar paper --help``."""
    width = max(map(len, NAMES))
    names = "\n".join(f"  ocar paper {name:{width}}  {about}" for name, about in NAMES.items())
    return (
        "usage: ocar paper NAME [OPTIONS]\n\n"
        "A table shows the paper's numbers, ours from stored runs and their difference, which of\n"
        "the paper's claims hold in ours, and the commands for missing runs. A figure makes its\n"
        "missing runs, and writes its numbers and pictures under results/figures.\n\n"
        f"{names}\n\n"
        "  --help     this text; after a name, its options\n"
    )


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Show a table of the paper, or make a figure; 1 if a run cannot be read or failed."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0 if arguments else 2
    given, *rest = arguments
    name = ALIASES.get(given, given)
    if name not in NAMES:
        raise unknown("table or figure", given, [*NAMES, *ALIASES])
    if name in TABLES:
        return show_table(name, rest, debug=debug)
    return _draw_curves(name, rest, debug=debug) if name in CURVES else _draw_figure(name, rest)


def command_line(name: str, arguments: Sequence[str]) -> str:
    """The command line for the file of a figure: without folders."""
    return shlex.join(["ocar", "paper", name, *without_options(arguments, FOLDERS)])


class Meter:
    """Shows the parts of a figure as they are made: a counting line in a terminal, else lines."""

    def __init__(self) -> None:
        self._name = ""
        self._begun = self._shown = 0.0

    def begin(self, name: str) -> Listen:
        """Begin a part."""
        self.end()
        self._name, self._begun = name, time.monotonic()
        if not sys.stderr.isatty():
            sys.stderr.write(f"{name}: begun\n")
        return self._listen

    def _listen(self, done: int, total: int) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._shown > 0.2:
            self._shown = now
            of = f" of {total}" if total else ""
            sys.stderr.write(f"\r\033[K{self._name}: batch {done}{of}")
            sys.stderr.flush()

    def end(self) -> None:
        """End the part that was begun last."""
        if self._name:
            clear = "\r\033[K" if sys.stderr.isatty() else ""
            seconds = time.monotonic() - self._begun
            sys.stderr.write(f"{clear}{self._name}: {seconds:.0f} s\n")
            self._name = ""


def _draw_figure(name: str, arguments: list[str]) -> int:
    from ocar_lab.experiment.parts import limited_threads

    kind = importlib.import_module(f"ocar_lab.paper.figures.{name}").FIGURE
    figure = parse(kind, arguments, command=f"ocar paper {name}")
    meter = Meter()
    with limited_threads(1):  # more do not help with models as small as these
        paths = figure.produce(command_line(name, arguments), meter.begin)
    meter.end()
    sys.stdout.writelines(f"{path}\n" for path in paths)
    return 0


def _draw_curves(name: str, arguments: list[str], *, debug: bool) -> int:
    from ocar.methods.registry import METHODS
    from ocar.streams.benchmarks import get_benchmark
    from ocar_lab.cli.flags import check_names
    from ocar_lab.cli.running import do_runs
    from ocar_lab.cli.workers import choose_workers
    from ocar_lab.drawing import save
    from ocar_lab.paper.figures import curves
    from ocar_lab.paper.figures.store import Wanted, gather

    options = parse(curves.Options, arguments, command=f"ocar paper {name}")
    labels, benchmark = options.methods, options.benchmark
    check_names(benchmark, [m for m in labels if m.removesuffix(IID) not in METHODS])
    if get_benchmark(benchmark).kind == "regression":
        raise ConfigError(
            f"Invalid --benchmark {benchmark}: it has losses and no accuracy, and "
            "ocar paper convex draws them over time. Must be a benchmark with classes."
        )
    kept = curves.drawn(options.file, benchmark)
    jobs = _missing_runs(options, kept)
    if jobs:
        workers, _ = choose_workers({}, workers=options.workers, jobs=len(jobs))
        again = shlex.join(["ocar", "paper", name, *arguments])
        code = do_runs(jobs, workers=workers, again=again, debug=debug)
        if code:
            return code
    chosen: dict[str, Sequence[Run]] = {}
    for label, own in _stored(options).items():
        if own and (set(options.seeds) <= {run.seed for run in own} or label not in kept):
            chosen[label] = own
        elif label not in kept:
            raise RunError(f"There is no finished run of {label} in {options.results}.")
    wanted = curves.wanted(benchmark, chosen)
    settings = {label: wanted.parts.get(label) or kept[label]["settings"] for label in labels}
    tasks = get_benchmark(benchmark).tasks
    parts = gather(
        options.file,
        Wanted(settings=wanted.settings, parts=settings),
        curves.Curve,
        lambda label: curves.make_curve(chosen[label], tasks=tasks),
        command=command_line(name, arguments),
    )
    paths = [options.file, *save(curves.draw_curves(benchmark, parts), options.stem)]
    sys.stdout.writelines(f"{path}\n" for path in paths)
    return 0


def _stored(options: CurvesOptions) -> dict[str, Sequence[Run]]:
    """The stored runs of each method."""
    from ocar_lab.paper.figures import curves

    folders = run_folders(options.results) if options.results.exists() else []
    runs, errors = read_folders([f for f in folders if options.benchmark in f.parts])
    print_errors(errors)
    return {
        label: curves.choose(runs, options.benchmark, label, options.seeds)
        for label in options.methods
    }


def _missing_runs(options: CurvesOptions, kept: dict[str, Any]) -> list[Job]:
    """The runs of each method that has too few seeds, both stored and in the file."""
    from ocar_lab.cli.run import make_jobs
    from ocar_lab.cli.workers import choose_workers

    jobs: list[Job] = []
    seeds = set(options.seeds)
    for label, own in _stored(options).items():
        in_file = set(kept.get(label, {}).get("settings", {}).get("seeds", ()))
        if (own and seeds <= {run.seed for run in own}) or (in_file and seeds <= in_file):
            continue
        wanted = {"data_root": options.data_root, "iid": label.endswith(IID)}
        chosen = options.seeds or (0,)
        _, config = choose_workers(wanted, workers=options.workers, jobs=len(chosen))
        method, out = label.removesuffix(IID), options.results
        jobs += make_jobs(options.benchmark, [method], seeds=chosen, out=out, **config)
    return jobs
