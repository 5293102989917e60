"""What the tests of runs share: small configurations, and what two run folders have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ocar.state import load_state
from ocar_lab.experiment import RunConfig
from ocar_lab.runs.folder import CHECKPOINT, METRICS


def small(**values: Any) -> RunConfig:
    """A run of a second or so."""
    common: dict[str, Any] = {
        "benchmark": "split-digits",
        "method": "er",
        "max_tasks": 2,
        "device": "cpu",
        "threads": 1,
    }
    return RunConfig(**{**common, **values})


def without_times(value: Any) -> Any:
    """Plain values without the seconds that something took."""
    if isinstance(value, Mapping):
        return {k: without_times(v) for k, v in value.items() if not k.endswith("seconds")}
    return value


def records(folder: Path) -> list[Any]:
    """The lines of the metrics, timings aside, read by the plainest means."""
    text = (folder / METRICS).read_text(encoding="utf-8")
    return [without_times(json.loads(line)) for line in text.splitlines()]


def assert_same_run(one: Path, other: Path) -> None:
    """Two folders hold the same metrics and the same final state, bit for bit, timings aside."""
    assert records(one) == records(other)
    tensors, values = load_state(one / CHECKPOINT)
    others, other_values = load_state(other / CHECKPOINT)
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name
    # Its size and digest depend on the seconds in the metrics.
    del values["metrics"], other_values["metrics"]
    assert without_times(values) == without_times(other_values)
