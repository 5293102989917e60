"""What ``python -m benchmarks`` measured, from the files under ``results/bench``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables import table

BENCH = Path(__file__).resolve().parents[2] / "results" / "bench"


def read_bench() -> dict[str, dict[str, Any]]:
    """Every file under ``results/bench``, by name."""
    paths = sorted(BENCH.glob("*.json"))
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def targets(bench: Mapping[str, Mapping[str, Any]]) -> str:
    """Which targets were set, and whether each is met."""
    rows = [
        [
            _sides(entry),
            entry["note"].partition(",")[0],
            _where(document),
            f"{entry['target']['relation']} {entry['target']['value']:g}",
            f"{entry['ratio']:.2f}",
            "met" if entry["target"]["met"] else "**not met**",
        ]
        for document in bench.values()
        for entry in document.get("results", [])
        if entry.get("target") is not None
    ]
    if not rows:
        return "No target was measured.\n"
    rows.sort()
    missed = [
        f"{sides} ({network}) on {where}: {ratio}, {wanted} wanted"
        for sides, network, where, wanted, ratio, met in rows
        if met != "met"
    ]
    plainly = f"Not met: {'; '.join(missed)}." if missed else "All are met."
    head = ["ratio", "network", "on", "target", "measured", ""]
    return table(head, rows) + f"\n{plainly}\n"


def bench_tables(bench: Mapping[str, Mapping[str, Any]]) -> str:
    """What ``python -m benchmarks`` measured, file by file."""
    parts = []
    for name, document in bench.items():
        device = _device(document)
        link = f"[{name}](../results/bench/{name})"
        if "runs" in document:
            parts.append(f"### Whole commands, {device}\n\n{link}: {document['what']}.\n")
            parts.append(_commands(document["runs"]))
            continue
        parts.append(f"### {device}, {document['threads']} thread(s)\n")
        command = document["command"].replace("ocar bench", "python -m benchmarks")  # its old name
        parts.append(f"`{command}` → {link}\n")
        rows = [
            [
                _sides(entry),
                f"{entry['ratio']:.2f}",
                f"{entry['smallest']:.2f} to {entry['largest']:.2f}",
                entry["note"],
            ]
            for entry in document["results"]
            if entry["kind"] == "ratio"
        ]
        parts.append(table(["ratio", "median", "by turn", "of"], rows))
    return "\n".join(parts)


def _device(document: Mapping[str, Any]) -> str:
    device = document["device"]
    if isinstance(device, str):
        return device
    return str(device.get("name") or f"{device['machine']}, {document['cores']} cores")


def _where(document: Mapping[str, Any]) -> str:
    """A GPU by its name, a CPU by its threads."""
    if document["device"].get("type") == "cuda":
        return _device(document)
    return f"a CPU, {document['threads']} thread(s)"


def _commands(runs: Sequence[Mapping[str, Any]]) -> str:
    columns = {
        "wall_s": "whole, s",
        "run_s": "the run, s",
        "train_s": "learning, s",
        "memory_mib": "GPU memory, MiB",
    }
    rows = [
        [
            f"`{run['command']}`" + (f", {run['note']}" if "note" in run else ""),
            *(str(run.get(column, "")) for column in columns),
        ]
        for run in runs
    ]
    return table(["command", *columns.values()], rows)


def _sides(entry: Mapping[str, Any]) -> str:
    return f"{entry['above']} / {entry['below']}"
