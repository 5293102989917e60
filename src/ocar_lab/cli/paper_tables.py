"""``ocar paper table1``, ``clear``, ``times``, ``check``: the paper's tables with our numbers."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ocar import datasets
from ocar.config import require
from ocar.errors import ConfigError, DataError
from ocar.install import find_source
from ocar.registry import unknown
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.tables import markdown_sheets, print_errors, print_json, print_sheets
from ocar_lab.published import PUBLISHED, SEEDS, SOURCE
from ocar_lab.runs import read_all
from ocar_lab.runs.command import flag_words

if TYPE_CHECKING:
    from ocar_lab.experiment import Job

RESULTS = Path("results")
"""Where ``ocar keep`` writes."""

RUNS = Path("runs")
"""Where ``ocar run`` writes."""

DATA = {"split-cifar100": "cifar100", "split-tinyimagenet": "tiny-imagenet"}
"""The data set of each half of Table 1."""

MAKING = ("methods", "seeds", "runs", "device", "workers", "data_root")
"""Options of ``--make``."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of every table."""

    results: Path = RESULTS
    """A folder that contains kept results or runs, at any depth."""

    json: bool = False
    """Print JSON: every number, the claims, the commands for missing runs."""

    markdown: bool = False
    """Print Markdown."""

    def __post_init__(self) -> None:
        if self.json and self.markdown:
            raise ConfigError("Invalid --json with --markdown. Must be one of them.")


@dataclass(frozen=True, kw_only=True)
class Table1Options(TableOptions):
    """Table 1 of the paper: its numbers, ours, and the difference in standard deviations.

    The difference is (ours - paper) / sqrt(s_paper² + s_ours²), with means over seeds and sample
    standard deviations s. One seed of ours has no spread: then it is over s_paper alone, marked by
    °. A difference beyond two standard deviations is marked by !.

    A row uses runs that follow the protocol with the published settings. Of several configurations
    those on the published splits come first, then those with the present preset, then the default
    Fisher, then the most seeds. The others are named.
    """

    benchmark: Literal["split-cifar100", "split-tinyimagenet"] = "split-cifar100"
    """Which half of the table."""

    make: bool = False
    """Do the missing runs first. The same command resumes what was interrupted."""

    methods: tuple[str, ...] = ()
    """With --make: rows to make, in this order; by default all that miss something."""

    seeds: int = SEEDS
    """With --make: seeds of each row."""

    runs: Path = RUNS
    """With --make: folder for the runs, which count as results too."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """With --make: where to compute; auto is the GPU if there is one."""

    workers: int | None = None
    """With --make: runs at a time, see ocar run."""

    data_root: Path | None = None
    """With --make: folder of the data sets; by default OCAR_DATA or the user's data folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [f for f in fields(self) if f.name in MAKING and getattr(self, f.name) != f.default]
        if given and not self.make:
            flag = given[0].name.replace("_", "-")
            raise ConfigError(f"Invalid --{flag} without --make. It says how to do missing runs.")
        require("seeds", self.seeds, 1 <= self.seeds <= SEEDS, f"from 1 to {SEEDS}")
        for name in self.methods:
            if name not in PUBLISHED[self.benchmark]:
                raise unknown("row", name, PUBLISHED[self.benchmark])


@dataclass(frozen=True, kw_only=True)
class ClearOptions(TableOptions):
    """The paper's table of Online CLEAR: its numbers, ours, the difference in standard deviations.

    The difference is (ours - paper) / sqrt(s_paper² + s_ours²), with means over seeds and sample
    standard deviations s. One seed of ours has no spread: then it is over s_paper alone, marked by
    °. A difference beyond two standard deviations is marked by !.

    PACS stands in for CLEAR in a second table: the same methods on a smaller domain-incremental
    benchmark, without numbers of the paper. Where no settings were selected, any are used.
    """


@dataclass(frozen=True, kw_only=True)
class TimesOptions(TableOptions):
    """The paper's table of training times: the first task of Split-CIFAR100, without evaluation.

    The paper's seconds are of a V100, so times are compared as ratios to ER. Ours are all of one
    device, the one with the most methods, and of runs without another run in parallel.
    """


@dataclass(frozen=True, kw_only=True)
class CheckOptions(TableOptions):
    """Every claim of the paper's text: whether it holds in our numbers.

    A claim is that some methods are better than others. It holds if the worst of the former is
    better than the best of the latter in the means over seeds, and is open as long as a method has
    no number. * marks where the 95 % interval of that difference excludes 0.
    """


def show_table(name: str, arguments: list[str], *, debug: bool) -> int:
    """Show a table of the paper; 1 if a run cannot be read or failed."""
    kinds: dict[str, type[TableOptions]] = {
        "table1": Table1Options,
        "clear": ClearOptions,
        "times": TimesOptions,
        "check": CheckOptions,
    }
    options = parse(kinds[name], arguments, command=f"ocar paper {name}")
    code, folders = 0, [options.results]
    if isinstance(options, Table1Options) and options.make:
        again = shlex.join(["ocar", "paper", name, *arguments])
        code = _make(options, again=again, debug=debug)
        folders.append(options.runs)
    # Before there are any results, the table shows the commands that make them.
    begun = [f for f in folders if f.exists() or f not in (RESULTS, RUNS)]
    if not begun:
        sys.stderr.write(_where_results_are())
    runs, errors = read_all(*begun)
    print_errors(errors)

    from ocar_lab.paper import claims, sheets, tables, times  # --help does not wait for them

    if isinstance(options, CheckOptions):
        checked = claims.check_all(runs)
        document, shown = sheets.claims_document(checked), sheets.claims_sheets(checked)
    elif isinstance(options, TimesOptions):
        table = times.times_table(runs)
        document, shown = sheets.times_document(table), [sheets.times_sheet(table)]
    else:
        found = (
            [tables.table1(runs, options.benchmark)]
            if isinstance(options, Table1Options)
            else [*tables.clear_tables(runs)]
        )
        document, shown = sheets.table_document(found), [*map(sheets.table_sheet, found)]
    if options.json:
        print_json({"paper": SOURCE, **document})
    elif options.markdown:
        sys.stdout.write(markdown_sheets(shown))
    else:
        print_sheets(shown)
    if code:
        sys.stderr.write("\nNot all runs are finished, see above. The same command resumes them.\n")
    return 1 if errors or code else 0


def _make(options: Table1Options, *, again: str, debug: bool) -> int:
    """Do the runs that a half of Table 1 misses; 0 if all are finished."""
    from ocar_lab.cli.run import plan
    from ocar_lab.cli.running import do_runs
    from ocar_lab.cli.workers import choose_workers
    from ocar_lab.paper.tables import table1

    folders = [folder for folder in (options.results, options.runs) if folder.exists()]
    missing = {c.method: c for c in table1(read_all(*folders)[0], options.benchmark).commands}
    chosen = [missing[name] for name in options.methods or missing if name in missing]
    for command in (command for command in chosen if command.to_choose):
        needed = ", ".join(command.to_choose)
        sys.stderr.write(f"{command.method} is left out: no value was published for {needed}.\n")
    chosen = [command for command in chosen if not command.to_choose]
    count = sum(seed < options.seeds for command in chosen for seed in command.seeds)
    if not count:
        sys.stderr.write("Nothing to make.\n")
        return 0
    require_data(options.benchmark, options.data_root)
    common = {"device": options.device, "data_root": options.data_root}
    workers, config = choose_workers(common, workers=options.workers, jobs=count)
    words = ["--out", str(options.runs)]
    for name, value in config.items():
        words += [] if value is None else flag_words(name, value)
    jobs: list[Job] = []
    for command in chosen:
        own, _, notes = plan([*shlex.split(command.line)[2:], *words])
        sys.stderr.writelines(notes)
        jobs += [job for job in own if job.config.seed < options.seeds]
    return do_runs(jobs, workers=workers, again=again, debug=debug, suggest=False)


def require_data(benchmark: str, root: Path | None) -> None:
    """Raise unless the data set of a half of Table 1 is whole.

    A sample gives numbers too, but not the paper's.
    """
    name = DATA[benchmark]
    (found,) = datasets.status(root or datasets.data_root(), names=(name,))
    if not found.whole:
        state = f"{found.where} is not all of it. {found.problem}" if found.present else "missing."
        raise DataError(f"Table 1 needs {name}: {state} {found.how_to_get}")


def _where_results_are() -> str:
    clone, _ = find_source()
    there = "FOLDER" if clone is None else clone / RESULTS
    return (
        f"Our numbers are missing: there is no folder {RESULTS} here. Run this in a clone of ocar, "
        f"or give --results {there}, or a folder of runs.\n"
    )
