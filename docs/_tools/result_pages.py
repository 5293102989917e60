"""What is kept under ``results/``, and the benchmarks, as tables."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables import plus_minus, spread, table

from ocar.streams.benchmarks import BENCHMARKS
from ocar_lab.cli import main
from ocar_lab.runs import Result

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def said_by(*arguments: str) -> str:
    """What a command prints of the kept results; its blocks of commands are shell.

    Args:
        *arguments: The command and its options.
    """
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.chdir(ROOT):
        code = main(arguments)
    if code != 0:
        raise RuntimeError(f"ocar {' '.join(arguments)} ended with {code}.")
    lines, inside = [], False
    for line in out.getvalue().splitlines():
        if line.startswith("```"):
            inside = not inside
            line = "```sh" if inside else "```"
        lines.append(line)
    return "\n".join(lines) + "\n"


def benchmarks_table() -> str:
    """What there is to run on."""
    rows = [
        [f"`{b.name}`", b.description, b.kind, b.model, str(b.memory), str(b.passes)]
        for b in BENCHMARKS.values()
    ]
    return table(["name", "what", "kind", "model", "memory", "steps a batch"], rows)


def results_tables(results: Sequence[Result]) -> str:
    """All kept results, and the command and file of each."""
    files = [
        [result.runs[0].benchmark, result.runs[0].label, f"`{result.command}`", _file(result.path)]
        for result in results
    ]
    return (
        said_by("show", "results", "--markdown")
        + "\n### How each was made\n\n"
        + table(["benchmark", "method", "command", "file"], files)
    )


def read_pictures() -> dict[str, Any]:
    """The numbers behind the pictures."""
    text = (RESULTS / "pictures" / "digits.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def pictures_table() -> str:
    """How well ER and OCAR learned and kept the digits of the pictures."""
    titles = {
        "new": "two new digits, when they end",
        "old": "all earlier ones, at the end",
        "lowest": "each pair at its worst since it ended",
    }
    rows = []
    for method, found in read_pictures()["measured"].items():
        parts = [(100 * found[name]["mean"], 100 * found[name]["std"]) for name in titles]
        rows.append([method.upper(), *(plus_minus(*part) for part in parts)])
    return table(["test accuracy, %", *titles.values()], rows, numbers=3)


def spectrum_sentence() -> str:
    """How many eigenvalues are beyond the damping."""
    numbers = read_pictures()
    ranks = [rank for rank, found in numbers["spectrum"] if found > numbers["preset"]["lr"]]
    total = numbers["spectrum"][-1][0]
    return (
        f"Of {total:,} eigenvalues at the end of the stream about {max(ranks)} are larger than τ: "
        "these directions are slowed down, all others are free.\n"
    )


def comparison_table(benchmark: str) -> str:
    """Two methods that were tuned alike, from what ``experiments/tuned_comparison.py`` kept.

    Args:
        benchmark: On which benchmark.
    """
    text = (RESULTS / benchmark / "comparison.json").read_text(encoding="utf-8")
    runs = json.loads(text)["runs"]
    rows = []
    for method in dict.fromkeys(run["method"] for run in runs):
        mine = [run for run in runs if run["method"] == method]
        cells = [spread([100 * run[name] for run in mine]) for name in ("acc", "aaa", "wc_acc")]
        rows.append([method.upper(), str(len(mine)), *cells])
    return table(["method", "seeds", "Acc", "AAA", "WC-Acc"], rows, numbers=4)


def _file(path: Path) -> str:
    return f"[{path.name}](../results/{path.relative_to(RESULTS).as_posix()})"
