"""Kept runs for tests: as values, and as the files that ``ocar keep`` would have written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocar_lab.published import SPLITS
from ocar_lab.runs import KeptRun, read_result
from ocar_lab.runs.results import FORMAT, VERSION, identity_hash


def write_kept(
    root: Path,
    benchmark: str,
    label: str,
    metrics: Mapping[int, Mapping[str, float]],
    *,
    changed: Mapping[str, Any] | None = None,
    device: str = "cuda",
    name: str = "A GPU",
    beside: int | None = 0,
) -> Path:
    """A file of results with these metrics, by seed."""
    config = {"benchmark": benchmark, "method": label, "changed": changed or {}, "device": device}
    if benchmark in SPLITS and "splits" not in (changed or {}):
        config["splits"] = "published"
    none = dict.fromkeys(("acc", "aaa", "wc_acc", "forgetting", "plasticity"))
    document = {
        "format": FORMAT,
        "version": VERSION,
        "label": label,
        "hash": identity_hash(config),
        "command": None,
        "changed": changed or {},
        "config": config,
        "runs": [
            {
                "seed": seed,
                "metrics": {**none, "seconds": 1.0, **values},
                "evaluations": 1,
                "threads": 1,
                "wall_seconds": None,
                "sessions": [{"device": {"type": device, "name": name}, "beside": beside}],
            }
            for seed, values in metrics.items()
        ],
    }
    path = root / benchmark / f"{label}-{identity_hash(config)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def kept(folder: Path, *arguments: Any, **options: Any) -> Sequence[KeptRun]:
    """The runs of such a file."""
    return read_result(write_kept(folder, *arguments, **options)).runs
