"""``ocar demo``: ER and OCAR side by side on digits that need no download."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ocar.errors import MissingPackageError
from ocar_lab.cli import run as run_command
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.report import NAME, write_report
from ocar_lab.cli.tables import print_runs
from ocar_lab.report.curves import draw_accuracy

BENCHMARK, METHODS = "split-digits", ("er", "ocar")
NEXT = "ocar run split-digits er ocar --seeds 0 1 2 --memory 20"

ABOUT = """\
Handwritten digits arrive ten at a time, two classes after two others, each once. A learner may
keep 100 of them and is asked for predictions after every batch. ER replays what it kept; OCAR also
slows down where predictions on old digits would change.
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """ER and OCAR on scikit-learn's digits: live progress, a table, a picture and a report."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; one run each of both methods."""

    out: Path = Path("runs/demo")
    """Folder for the runs, the picture and the report."""

    workers: int | None = None
    """Runs side by side, each in a process; by default one for each core."""


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Run the demonstration."""
    options = parse(Options, arguments, command=f"ocar {command}")
    sys.stderr.write(ABOUT)
    common = run_command.Options(
        seeds=options.seeds, out=options.out, workers=options.workers, threads=1, device="cpu"
    )
    jobs = run_command.make_jobs(BENCHMARK, METHODS, common, {})
    workers = run_command.choose_workers(common, len(jobs))
    again = " ".join(["ocar", command, *arguments])
    code = run_command.do_runs(jobs, workers=workers, again=again, debug=debug)
    if code:
        return code
    runs = run_command.stored(jobs)
    sys.stdout.write("\n")
    print_runs(runs)
    sys.stdout.write(
        "\nAcc: after the last batch, on test data. AAA: mean over time. WC-Acc: how bad it got.\n"
    )
    picture = options.out / "accuracy.png"
    try:
        draw_accuracy(runs, picture)
    except MissingPackageError as error:
        sys.stdout.write(f"No picture: {error}\n")
    else:
        sys.stdout.write(f"Accuracy over time: {picture}\n")
    page = options.out / NAME
    try:
        write_report(runs, page, title=f"{BENCHMARK}, {' and '.join(METHODS)}")
    except MissingPackageError as error:
        sys.stdout.write(f"No report: {error}\n")
    else:
        sys.stdout.write(f"Report:             {page}\n")
    sys.stdout.write(f"Runs:               {options.out}\nTry next:           {NEXT}\n")
    return 0
