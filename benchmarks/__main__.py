"""``python -m benchmarks``: speed, as ratios of two sides that take turns in one run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks import (
    GROUPS,
    Breakdown,
    Ratio,
    Result,
    Setup,
    Skipped,
    check_names,
    choose_device,
    document,
    measure,
)
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.tables import print_table

COMMAND = "python -m benchmarks"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure the speed, as ratios of two sides that take turns in one run.

    Each ratio is of the medians; beside it stand the smallest and the largest of a turn. Set
    OMP_NUM_THREADS for the threads of the CPU.
    """

    json: bool = False
    """Print JSON."""

    quick: bool = False
    """Small networks and two turns: whether it works, not how fast it is."""

    only: tuple[str, ...] = ()
    """What to measure: steps, nngeometry, captured, concurrent, mlp, serving, parts, floor, guard,
    saving. All by default."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto is the GPU if there is one."""

    save: Path | None = None
    """A file to write the JSON to."""


def main(arguments: Sequence[str]) -> int:
    """Measure and say what was found."""
    options = parse(Options, list(arguments), command=COMMAND)
    names, device = check_names(options.only), choose_device(options.device)
    setup = Setup.quick(device) if options.quick else Setup(device=device)
    results: list[Result] = []
    for name in names:
        sys.stderr.write(f"Measuring {name}: {GROUPS[name].about}\n")
        sys.stderr.flush()
        results += measure(setup, [name])
    said = document(results, setup=setup, command=shlex.join([*COMMAND.split(), *arguments]))
    text = json.dumps(said, indent=1, ensure_ascii=False) + "\n"
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
    ratios = [result for result in results if isinstance(result, Ratio)]
    if ratios:
        header = ["measured", "above / below", "ratio", "spread", "times", "wanted"]
        print_table(header, [ratio_row(ratio) for ratio in ratios], title="Ratios of times")
    for result in results:
        if isinstance(result, Breakdown):
            rows = [
                [part.name, f"{100 * part.share:.1f} %", f"{part.amount:.3g}"]
                for part in result.parts
            ]
            rows.append(["together", "100.0 %", f"{result.total:.3g}"])
            header = ["part", "share", result.unit]
            print_table(header, rows, title=f"\n{result.name}", numbers=True)
    notes = {r.note: None for r in results if not isinstance(r, Skipped) and r.note}
    notes |= {
        f"Not measured: {r.name}: {r.reason}": None for r in results if isinstance(r, Skipped)
    }
    sys.stdout.write("".join(f"\n{note}" for note in notes) + "\n")


def ratio_row(ratio: Ratio) -> list[str]:
    """The texts of a ratio's row."""
    wanted, per = "", ratio.unit.removeprefix("s ")
    if ratio.target is not None:
        wanted = f"{ratio.target}: {'yes' if ratio.target.met(ratio.ratio) else 'no'}"
    return [
        ratio.name,
        f"{ratio.above} / {ratio.below}",
        f"{ratio.ratio:.2f}",
        f"{ratio.smallest:.2f} to {ratio.largest:.2f}",
        f"{milliseconds(ratio.time_above)} / {milliseconds(ratio.time_below)} {per}",
        wanted,
    ]


def milliseconds(seconds: float) -> str:
    """A time for people to read."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
