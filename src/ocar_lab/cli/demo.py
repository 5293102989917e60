"""``ocar demo``: ER and OCAR on digits that need no download."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ocar.errors import MissingPackageError
from ocar_lab.cli.arguments import command_line, parse, require_folder
from ocar_lab.cli.report import NAME, write_report
from ocar_lab.cli.run import make_jobs
from ocar_lab.cli.running import do_runs, stored
from ocar_lab.cli.tables import print_runs
from ocar_lab.cli.workers import choose_workers
from ocar_lab.optional import require_packages
from ocar_lab.report.curves import draw_accuracy

BENCHMARK, METHODS = "split-digits", ("er", "ocar")
NEXT = "ocar run split-digits er ocar --seeds 0 1 2 --memory 20"

ABOUT = """\
Handwritten digits arrive ten at a time, two classes after two others, each once. A learner may
remember 100 of them and must predict after every batch. ER replays its memory; OCAR also slows down
where predictions on old digits would change.
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """ER and OCAR on scikit-learn's digits: live progress, a table, a picture and a report."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; one run each of both methods."""

    out: Path = Path("demo")
    """Folder for the runs, the picture and the report."""

    workers: int = 1
    """Runs at a time. More than 1 are processes, each of which takes longer to start than a run."""

    def __post_init__(self) -> None:
        require_folder("--out", self.out)


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Run the demonstration."""
    options = parse(Options, arguments, command=f"ocar {command}")
    require_packages("The demo", "sklearn", extra="demo")
    sys.stderr.write(ABOUT)
    jobs_count = len(METHODS) * len(options.seeds)
    workers, config = choose_workers(
        {"device": "cpu", "threads": 1}, workers=options.workers, jobs=jobs_count
    )
    jobs = make_jobs(BENCHMARK, METHODS, seeds=options.seeds, out=options.out, **config)
    again = command_line(command, arguments)
    code = do_runs(jobs, workers=workers, again=again, debug=debug)
    if code:
        return code
    runs = stored(jobs)
    sys.stdout.write("\n")
    print_runs(runs)
    sys.stdout.write(
        "\nAcc: after the last batch, on test data. AAA: mean over time. WC-Acc: worst case.\n"
    )
    picture, page = options.out / "accuracy.png", options.out / NAME
    title = f"{BENCHMARK}, {' and '.join(METHODS)}"
    _write("Accuracy over time:", picture, lambda: draw_accuracy(runs, picture))
    _write("Report:            ", page, lambda: write_report(runs, page, title=title))
    sys.stdout.write(f"Runs:               {options.out}\nTry next:           {NEXT}\n")
    return 0


def _write(what: str, path: Path, write: Callable[[], object]) -> None:
    """Write a file and say where it is, or which package it needs."""
    try:
        write()
    except MissingPackageError as error:
        sys.stdout.write(f"{what} not made: {error}\n")
    else:
        sys.stdout.write(f"{what} {path}\n")
