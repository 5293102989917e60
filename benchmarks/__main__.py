"""``python -m benchmarks``: the speed of the package, as ratios."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import benchmarks
from benchmarks import GROUPS, Breakdown, Ratio, Result, Setup, Skipped
from ocar.errors import ConfigError
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.tables import print_table

COMMAND = "python -m benchmarks"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure the speed, as ratios of two sides that take turns in one process.

    Each ratio is of the medians; the smallest and the largest ratio of a turn follow it. Set
    OMP_NUM_THREADS to choose the threads of the CPU.
    """

    json: bool = False
    """Print JSON."""

    quick: bool = False
    """Small networks and two turns: whether it works, not how fast it is."""

    only: tuple[str, ...] = ()
    """What to measure, by name; a wrong name lists them. All by default."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto is the GPU if there is one."""

    save: Path | None = None
    """A file to write the JSON to."""


def main(arguments: Sequence[str]) -> int:
    """Measure and print the results; the exit code is 2 for a wrong call."""
    try:
        options = parse(Options, list(arguments), command=COMMAND)
        names = benchmarks.check_names(options.only)
        device = benchmarks.choose_device(options.device)
    except ConfigError as error:
        sys.stderr.write(f"{COMMAND}: {error}\n")
        return 2
    setup = Setup.quick(device) if options.quick else Setup(device=device)
    results: list[Result] = []
    for name in names:
        about = (GROUPS[name].__doc__ or "").partition("\n")[0]
        sys.stderr.write(f"Measuring {name}: {about}\n")
        sys.stderr.flush()
        results += benchmarks.measure(setup, [name])
    command = shlex.join([*COMMAND.split(), *arguments])
    document = benchmarks.document(results, setup=setup, command=command)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if options.save is not None:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(text, encoding="utf-8")
    if options.json:
        sys.stdout.write(text)
    else:
        print_results(results)
    return 0


def print_results(results: Sequence[Result]) -> None:
    """Print a table of the ratios, one of each breakdown, and a line for what was skipped."""
    ratios = [ratio_row(result) for result in results if isinstance(result, Ratio)]
    if ratios:
        header = ["measured", "above / below", "ratio", "spread", "times", "wanted"]
        print_table(header, ratios, title="Ratios of times")
    notes: list[str] = []
    for result in results:
        if isinstance(result, Breakdown):
            rows = [[p.name, f"{100 * p.share:.1f} %", f"{p.amount:.3g}"] for p in result.parts]
            rows.append(["together", "100.0 %", f"{result.total:.3g}"])
            header = ["part", "share", result.unit]
            print_table(header, rows, title=f"\n{result.name}", numbers=True)
        if isinstance(result, Skipped):
            notes.append(f"Not measured: {result.name}: {result.reason}")
        elif result.note:
            notes.append(result.note)
    sys.stdout.write("".join(f"\n{note}" for note in dict.fromkeys(notes)) + "\n")


def ratio_row(ratio: Ratio) -> list[str]:
    """The cells of a ratio's row."""
    wanted, per = "", ratio.unit.removeprefix("s ")
    if ratio.target is not None:
        wanted = f"{ratio.target}: {'yes' if ratio.target.met(ratio.ratio) else 'no'}"
    return [
        ratio.name,
        f"{ratio.above} / {ratio.below}",
        f"{ratio.ratio:.2f}",
        f"{ratio.smallest:.2f} to {ratio.largest:.2f}",
        f"{time_text(ratio.time_above)} / {time_text(ratio.time_below)} {per}",
        wanted,
    ]


def time_text(seconds: float) -> str:
    """A time in milliseconds or seconds."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
