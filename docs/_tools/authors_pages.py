"""What each detail of the authors' code does, paired by seed, from the kept runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tables import table

from ocar_lab.cli.compare import metric_rows
from ocar_lab.runs import Measured, Result, compare

BENCHMARK = "split-cifar100"
METRICS = {"acc": "Acc", "aaa": "AAA", "wc_acc": "WC-Acc"}
DETAILS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("A·√K and G/√K in the averages", "ocar", {"factor_scale": "none"}, {}),
    ("G restarts with the largest label", "ocar", {"head_size": "classes"}, {}),
    ("both of these", "ocar", {"factor_scale": "none", "head_size": "classes"}, {}),
    ("a forward pass of its own for the Fisher", "ocar", {}, {"fisher_forward": "own"}),
    ("no sample replayed twice", "er-ace", {"replay": "fresh"}, {}),
    ("no sample replayed twice", "ocar-ace", {"replay": "fresh"}, {}),
)
"""The detail, the method, and what the runs without and with it changed in the preset."""


def authors_table(results: Sequence[Result]) -> str:
    """The mean difference that each detail makes, with its 95 % interval."""
    rows = []
    for title, method, without, having in DETAILS:
        sides = [_runs(results, method, changed) for changed in (without, having)]
        cells = ["", *("not measured" for _ in METRICS)]
        if all(sides):
            found = compare(*sides)
            metrics = {name: found.metrics[name] for name in METRICS}
            texts = [f"{row[3]} ({row[4]})" for row in metric_rows(metrics)]
            cells = [str(len(found.seeds)), *texts]
        rows.append([title, f"`{method}`", *cells])
    return table(["with against without", "method", "seeds", *METRICS.values()], rows)


def _runs(results: Sequence[Result], method: str, changed: dict[str, Any]) -> Sequence[Measured]:
    """The runs of the method on the published splits with these changes, the most seeds."""
    wanted = (BENCHMARK, method, changed)
    mine = [r.runs for r in results if (*r.runs[0].key[:2], r.runs[0].changed) == wanted]
    return max(mine, key=len, default=())
