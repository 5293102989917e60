"""Counts of what was tried to break the package, from the files under ``results``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tables import table

from ocar_lab.runs import KeptRun, mean_interval, read_result, result_files
from ocar_lab.runs.versions import EARLIER

RESULTS = Path(__file__).resolve().parents[2] / "results"
RELIABILITY = RESULTS / "reliability"
MISSING = "Not measured yet.\n"


def fuzz_table() -> str:
    """How many spoiled files each reader was fed, and what became of them."""
    found: Mapping[str, Any] = _read("fuzz.json") or {}
    rows = [
        [
            name,
            *(f"{entry[key]:,}" for key in ("tried", "refused", "accepted")),
            str(len(entry["failures"])),
            f"`{entry['command']}`",
        ]
        for name, entry in found.items()
    ]
    head = ["reader", "inputs", "refused", "read", "failures", "command"]
    return table(head, rows, numbers=4) if rows else MISSING


def long_streams_table() -> str:
    """The longest streams, and what had grown since the warm-up."""
    rows = [_long_row(entry) for entry in _read("long-stream.json") or []]
    head = ["method", "batches", "memory", "CPU time a batch", "files", "metrics differ", "command"]
    return table(head, rows, numbers=5) if rows else MISSING


def _long_row(entry: Mapping[str, Any]) -> list[str]:
    grown, last = entry["growth_after_warm_up"], entry["looks"][-1]
    difference = entry["largest_difference_to_metrics_of_all_evaluations"]
    return [
        entry["method"].upper() + ("" if entry["guard"] else ", no guard"),
        f"{entry['batches']:,}",
        f"{100 * grown['resident_mb']:+.2f} % of {last['resident_mb']:.0f} MB",
        f"{100 * grown['cpu_ms_a_batch']:+.1f} % of {last['cpu_ms_a_batch']:.2f} ms",
        f"{last['files_mb']:.1f} MB",
        f"by {difference:.0e}" if difference else "not at all",
        f"`{entry['command']}`",
    ]


def hostile_streams_table() -> str:
    """What a bad stretch in the middle of a stream leaves behind, against a run without it."""
    found: Mapping[str, Any] = _read("hostile-streams.json") or {"runs": []}
    sane = {_who(run): run["accuracy"] for run in found["runs"] if run["stream"] is None}
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for run in found["runs"]:
        if run["stream"] is not None and run["guard"]:
            key = (run["stream"].replace("_", " "), f"{run['method'].upper()}, {run['model']}")
            groups.setdefault(key, []).append(run)
    rows = [[*key, *_hostile_cells(runs, sane)] for key, runs in groups.items()]
    head = ["stretch", "learner", "change", "Acc", "seeds, finite", "skipped, shortened, copies"]
    return table(head, rows) if rows else MISSING


def presets_table() -> str:
    """What the guard saw in runs of the paper's benchmark with the presets."""
    runs = [
        run for path in result_files(RESULTS / "split-cifar100") for run in read_result(path).runs
    ]
    groups: dict[str, list[KeptRun]] = {}
    for run in runs:
        if run.guarded is not None and not run.changed.keys() - {"fisher", "splits", *EARLIER}:
            named = {n: v for n, v in run.changed.items() if n not in EARLIER}
            changes = ", ".join(map(str, named.values()))
            groups.setdefault(run.label + (f" ({changes})" if changes else ""), []).append(run)
    rows = [[label, *_preset_cells(group)] for label, group in sorted(groups.items())]
    head = ["method", "seeds", "evaluations", "backed off", "largest change (nats)"]
    return table(head, rows, numbers=4) if rows else MISSING


def _preset_cells(runs: list[KeptRun]) -> list[str]:
    counts = [run.guarded or {} for run in runs]
    kinds = ("not_finite", "out_of_scale", "shortened", "copies")
    backed_off = sum(count[kind] for count in counts for kind in kinds)
    largest = max(count["largest_kl"] for count in counts)
    evaluations = sum(run.evaluated for run in runs)
    return [
        str(len(runs)),
        f"{evaluations:,}",
        str(backed_off),
        f"{largest:.1f}" if largest else "not measured",
    ]


def _hostile_cells(
    runs: list[Mapping[str, Any]], sane: Mapping[tuple[Any, ...], float]
) -> list[str]:
    finite = [run for run in runs if run["finite"]]
    changes = [100 * (run["accuracy"] - sane[_who(run)]) for run in finite]
    counts = [
        sum(run["guarded"][name] for run in runs for name in names) / len(runs)
        for names in (("not_finite", "out_of_scale"), ("shortened",), ("copies",))
    ]
    mean = 100 * sum(run["accuracy"] for run in finite) / max(1, len(finite))
    interval = mean_interval(changes)
    spread = "" if interval is None else f" ({interval.low:+.1f} to {interval.high:+.1f})"
    change = f"{sum(changes) / max(1, len(changes)):+.1f}{spread}"
    done = ", ".join(f"{count:.0f}" for count in counts)
    return [change, f"{mean:.1f}", f"{len(runs)}, {len(finite)}", done]


def _who(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return run["method"], run["model"], run["guard"], run["seed"]


def _read(name: str) -> Any:
    path = RELIABILITY / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
