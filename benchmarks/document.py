"""Measurements as plain values: what ``ocar bench --json`` prints and ``--save`` writes."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.results import Breakdown, Ratio, Result
from benchmarks.setup import Setup
from ocar_lab.runs import describe_process

SCHEMA = 1
"""Number of the form; another one where a reader of this one would go wrong."""

COMPARED = ("nngeometry", "avalanche-lib")


def document(results: Sequence[Result], *, setup: Setup, command: str) -> dict[str, Any]:
    """Results with all that one needs to judge them.

    Args:
        results: What was measured.
        setup: On what.
        command: The command line that measured it.
    """
    process = describe_process(setup.device)
    chosen = dataclasses.asdict(setup)
    del chosen["device"]
    return {
        "schema": SCHEMA,
        "command": command,
        "time": process["time"],
        "device": process["device"],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": process["versions"] | _compared(),
        "git": process["git"],
        "setup": chosen,
        "results": [plain(result) for result in results],
    }


def plain(result: Result) -> dict[str, Any]:
    """A result as plain values, its numbers with four digits."""
    kind = {Ratio: "ratio", Breakdown: "breakdown"}.get(type(result), "skipped")
    values = {"kind": kind, **dataclasses.asdict(result)}
    if isinstance(result, Ratio) and result.target is not None:
        values["target"]["met"] = result.target.met(result.ratio)
    return {name: _rounded(value) for name, value in values.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return value


def _compared() -> dict[str, str]:
    found = {}
    for name in COMPARED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
