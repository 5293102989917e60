"""The ablation of slow weights on Split-CIFAR100."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tables import plus_minus, table

from ocar_lab.published import published
from ocar_lab.runs import Result

METRICS = {"acc": "Acc", "aaa": "AAA", "wc_acc": "WC-Acc", "probe": "probe"}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "OCAR": ("ocar", {}),
    "+ slow weights that predict with it": ("ocar", {"prediction": "both", "mirror": False}),
    "+ distillation, + the mirror image: `ocar-slow`": ("ocar-slow", {}),
    "ER with the same three parts": ("er", {"prediction": "both", "distillation": 1.0}),
}


def slow_table(results: Sequence[Result]) -> str:
    """One row for each part, from the kept runs on the published splits."""
    mine = [r for r in results if r.runs[0].benchmark == "split-cifar100"]
    best = published("split-cifar100", "ocar-ace")
    printed = [plus_minus(best[metric].mean, best[metric].std) for metric in METRICS]
    rows = [["the paper's best row, OCAR-ACE", "5", *printed]]
    for title, (label, changed) in ROWS.items():
        (found,) = (r for r in mine if (r.runs[0].label, r.runs[0].changed) == (label, changed))
        rows.append([title, str(len(found.runs)), *(_cell(found, metric) for metric in METRICS)])
    return table(["Split-CIFAR100", "seeds", *METRICS.values()], rows, numbers=5)


def _cell(result: Result, metric: str) -> str:
    values = [getattr(run.summary, metric) for run in result.runs]
    known = [100 * value for value in values if value is not None]
    return plus_minus(statistics.fmean(known), statistics.stdev(known)) if known else ""
