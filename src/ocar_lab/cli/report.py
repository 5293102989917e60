"""``ocar report``: stored runs as one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ocar.errors import ConfigError, RunError
from ocar.files import encode, write_whole
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.tables import print_errors, print_text
from ocar_lab.report.page import make_page
from ocar_lab.report.sections import make_report, plain
from ocar_lab.report.studies import StudyPart, read_studies
from ocar_lab.runs import Measured, read_all
from ocar_lab.runs.find import HOW_TO_RUN, find_all
from ocar_lab.runs.provenance import now

NAME = "report.html"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write one HTML page on stored runs, which needs no network and no other file.

    It has a table of all runs to sort and filter, the table with the paper's numbers, accuracy over
    time, every task over time, the stability gap, τ and λ, the time of a batch, commands and
    configurations, and the trials of studies. ocar watch shows the same page live.
    """

    dir: Path
    """A folder that contains runs, kept results or studies, at any depth."""

    out: Path | None = None
    """The page; report.html in that folder by default."""

    json: bool = False
    """Print the numbers as JSON instead."""

    def __post_init__(self) -> None:
        if self.json and self.out is not None:
            raise ConfigError("Invalid --json with --out. Must be one of them.")
        if self.out is not None and self.out.is_dir():
            raise ConfigError(f"Invalid --out {self.out}: it is a folder. Must be a file.")


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Write the page."""
    options = parse(Options, arguments, command=f"ocar {command}")
    runs, errors = read_all(options.dir)
    folders = [] if options.dir.is_file() else find_all(options.dir).studies
    studies, more = read_studies(folders)
    errors += more
    print_errors(errors)
    if not runs and not studies:
        raise RunError(f"There are no runs in {options.dir}. {HOW_TO_RUN}")
    title = options.dir.resolve().name or str(options.dir)
    if options.json:
        report = make_report(runs, title=title, created=now(), studies=studies, errors=errors)
        print_text(json.dumps(plain(report), ensure_ascii=False, allow_nan=False))
    else:
        folder = options.dir.parent if options.dir.is_file() else options.dir
        path = options.out or folder / NAME
        write_report(runs, path, title=title, studies=studies, errors=errors)
        print_text(str(path))
    return 1 if errors else 0


def write_report(
    runs: Sequence[Measured],
    path: Path,
    *,
    title: str,
    studies: Sequence[StudyPart] = (),
    errors: Sequence[str] = (),
) -> None:
    """Write the page on some runs and studies."""
    page = make_page(make_report(runs, title=title, created=now(), studies=studies, errors=errors))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, encode(page))
