"""What slow weights give: part by part on Split-CIFAR100, and on other streams."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from result_pages import RESULTS
from tables import plus_minus, spread, table

from ocar_lab.published import published
from ocar_lab.runs import Result

METRICS = {"acc": "Acc", "aaa": "AAA", "wc_acc": "WC-Acc", "probe": "probe"}
LEARNED: dict[str, Any] = {"closed_form_head": False}
"""The recipe with the head that the model has learned."""
TEN: dict[str, Any] = {"replay_batch": 10, **LEARNED}
"""An earlier one: ten replayed samples, and the mirror image instead of the image."""
PLAIN = {"factor_scale": "none", "head_size": "classes"}
"""OCAR with the settings of ``ocar-slow``."""
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "OCAR": ("ocar", PLAIN),
    "+ slow weights that predict with it": (
        "ocar",
        {**PLAIN, "prediction": "both", "mirror": False},  # "no", as it was called then
    ),
    "+ distillation, + the mirror image instead of the image": ("ocar-slow", TEN),
    "+ 20 replayed samples for 10, + the mirror image too": ("ocar-slow", LEARNED),
    "+ a head in closed form: `ocar-slow`": ("ocar-slow", {}),
    "the third row of ours, distillation of all samples": (
        "ocar-slow",
        {"distill_on": "all", "slow_warmup": 20.0, **TEN},
    ),
    "ER with slow weights and distillation of all samples": (
        "er",
        {"prediction": "both", "distillation": 1.0},
    ),
}
WITHOUT: dict[str, Any] = {"defaults": True}
OTHERS = {
    "Split-TinyImageNet, Acc and probe of one seed": ("split-tinyimagenet", {"every": 10}),
    "PACS": ("pacs", {}),
    "Split-MNIST": ("split-mnist", {}),
    "Split-MNIST, without settings": ("split-mnist", WITHOUT),
    "split-digits": ("split-digits", {}),
    "split-digits, without settings": ("split-digits", WITHOUT),
}
"""Benchmarks, and what their runs of ``ocar-slow`` changed."""
CLOSED: dict[str, Any] = {"closed_form_head": True}
HEADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "er": ({}, CLOSED),
    "ocar": ({}, CLOSED),
    "ocar-slow": (LEARNED, {}),
}
"""Methods, and what their runs with a learned and with a closed-form head changed."""
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "": ("ocar", {}),
    "+ slow weights that predict with it": ("ocar-slow", {"distillation": 0.0, **LEARNED}),
    "+ distillation": ("ocar-slow", LEARNED),
    "+ a head in closed form: `ocar-slow`": ("ocar-slow", {}),
}
"""The parts that count on a stream of vectors with a small memory: no mirror image, ten replayed
samples."""


def _find(
    results: Sequence[Result], benchmark: str, label: str, changed: Mapping[str, Any]
) -> Result:
    """The one kept result of a benchmark and method that changed these settings."""
    wanted = (benchmark, label, changed)
    (found,) = (
        r for r in results if (r.runs[0].benchmark, r.runs[0].label, _but_fisher(r)) == wanted
    )
    return found


def _but_fisher(result: Result) -> dict[str, Any]:
    changed = result.runs[0].changed
    return {name: value for name, value in changed.items() if name != "fisher"}


def others_table(results: Sequence[Result]) -> str:
    """OCAR and ``ocar-slow`` on the other streams; on Tiny ImageNet OCAR as the paper prints it."""
    rows = []
    for title, (benchmark, changed) in OTHERS.items():
        mine = [r for r in results if r.runs[0].benchmark == benchmark]
        (slow,) = (
            r for r in mine if (r.runs[0].label, r.runs[0].changed) == ("ocar-slow", changed)
        )
        own = changed if changed == WITHOUT else {}
        plain = [r for r in mine if r.runs[0].label == "ocar" and _but_fisher(r) == own]
        printed = published(benchmark, "ocar")
        if plain:
            cells = [_cell(plain[0], metric) for metric in METRICS]
        else:
            cells = [plus_minus(printed[m].mean, printed[m].std) for m in METRICS]
        stream, _, recipe = title.partition(", ")
        of_ocar = (recipe if own else "") if plain else "the paper"
        rows.append([", ".join(filter(None, (stream, "OCAR", of_ocar))), *cells])
        name = ", ".join(filter(None, (stream, "`ocar-slow`", recipe)))
        more = _validated() if benchmark == "split-tinyimagenet" else {}
        rows.append([name, *(more.get(metric) or _cell(slow, metric) for metric in METRICS)])
    return table(["", *METRICS.values()], rows, numbers=4)


def _validated() -> dict[str, str]:
    """AAA and WC-Acc of runs that were evaluated to their end, and not all tested."""
    path = RESULTS / "settings" / "slow-split-tinyimagenet-validation.json"
    seeds = json.loads(path.read_text(encoding="utf-8"))["rows"]
    values = {metric: [100 * row[metric] for row in seeds] for metric in ("aaa", "wc_acc")}
    return {metric: spread(numbers) for metric, numbers in values.items()}


def parts_table(results: Sequence[Result]) -> str:
    """One row for each part, on streams of vectors."""
    rows = []
    for benchmark, own, start in (
        ("split-digits", {}, "split-digits, OCAR"),
        ("split-digits", WITHOUT, "split-digits, OCAR without settings"),
        ("split-mnist", {}, "Split-MNIST, OCAR"),
    ):
        for title, (label, changed) in PARTS.items():
            found = _find(results, benchmark, label, {**changed, **own})
            cells = (_cell(found, metric) for metric in METRICS)
            rows.append([title or start, str(len(found.runs)), *cells])
    return table(["", "seeds", *METRICS.values()], rows, numbers=5)


def heads_table(results: Sequence[Result]) -> str:
    """Methods with the head that they learn, and with one that is solved for on the memory."""
    rows = []
    for title, benchmark in (("split-digits", "split-digits"), ("Split-MNIST", "split-mnist")):
        for label, heads in HEADS.items():
            for kind, changed in zip(("learned", "closed form"), heads, strict=True):
                found = _find(results, benchmark, label, changed)
                cells = (_cell(found, metric) for metric in METRICS)
                rows.append([f"{title}, `{label}`, {kind}", str(len(found.runs)), *cells])
    return table(["method and its head", "seeds", *METRICS.values()], rows, numbers=5)


def cost_table() -> str:
    """Seconds of a stream batch with each part over those of OCAR, on one CPU thread."""
    document = json.loads((RESULTS / "bench" / "cpu-slow.json").read_text(encoding="utf-8"))
    cells: dict[str, list[str]] = {}
    for entry in document["results"]:
        turns = f"{entry['smallest']:.2f} to {entry['largest']:.2f}"
        cells.setdefault(entry["above"], []).append(f"{entry['ratio']:.2f} ({turns})")
    rows = [[part, *own] for part, own in cells.items()]
    return table(["over OCAR", "to learn", "to learn, then predict ten samples"], rows, numbers=2)


def slow_table(results: Sequence[Result]) -> str:
    """One row for each part, from the kept runs on the published splits."""
    best = published("split-cifar100", "ocar-ace")
    printed = [plus_minus(best[metric].mean, best[metric].std) for metric in METRICS]
    rows = [["the paper's best row, OCAR-ACE", "5", *printed]]
    for title, (label, changed) in ROWS.items():
        found = _find(results, "split-cifar100", label, changed)
        rows.append([title, str(len(found.runs)), *(_cell(found, metric) for metric in METRICS)])
    return table(["Split-CIFAR100", "seeds", *METRICS.values()], rows, numbers=5)


def _cell(result: Result, metric: str) -> str:
    values = [getattr(run.summary, metric) for run in result.runs]
    known = [100 * value for value in values if value is not None]
    return spread(known) if known else ""
