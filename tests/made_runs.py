"""Run folders for tests of reports: written as a run writes them, from given numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocar.evaluate import summarize
from ocar.events import Counts, Evaluated, Finished
from ocar_lab.runs import Run, read_run
from ocar_lab.runs.folder import CONFIG, METRICS, STATUS
from ocar_lab.runs.records import evaluation_record, result_record, to_line


def history(
    rng: np.random.Generator, lengths: Sequence[int], *, every: int = 1, size: int = 20
) -> list[Evaluated]:
    """Random evaluations of tasks of so many batches."""
    events: list[Evaluated] = []
    index = -1
    for task, length in enumerate(lengths):
        for batch in range(1, length + 1):
            index += 1
            if (index + 1) % every and batch < length:
                continue
            events.append(
                Evaluated(
                    correct=tuple(rng.integers(0, size + 1, task + 1).tolist()),
                    sizes=(size,) * (task + 1),
                    index=index,
                    task=task,
                    seconds=float(index + 1 + rng.random()),
                    seen=10 * (index + 1),
                )
            )
    return events


def write_run(
    folder: Path,
    events: Sequence[Evaluated],
    *,
    label: str = "er",
    benchmark: str = "split-digits",
    seed: int = 0,
    finished: bool = True,
    reported: Sequence[Mapping[str, float]] | None = None,
    command: Sequence[str] = ("ocar", "run"),
    **config: Any,
) -> Run:
    """A run folder with these evaluations."""
    path = folder / benchmark / label / f"seed-{seed}"
    path.mkdir(parents=True)
    document = {
        "config": {"benchmark": benchmark, "method": label, **config},
        "seed": seed,
        "label": label,
        "hash": "0123456789",
        "device": {"type": "cpu", "name": "a processor"},
        "command": list(command),
    }
    (path / CONFIG).write_text(json.dumps(document), encoding="utf-8")
    state = "finished" if finished else "stopped"
    (path / STATUS).write_text(json.dumps({"state": state}), encoding="utf-8")
    values = reported or [{}] * len(events)
    lines = [to_line(evaluation_record(e, v)) for e, v in zip(events, values, strict=True)]
    if finished:
        test = Counts(correct=events[-1].correct, sizes=events[-1].sizes)
        summary = summarize(events, test=test, seconds=events[-1].seconds)
        result = Finished(correct=test.correct, sizes=test.sizes, summary=summary)
        lines.append(to_line(result_record(result)))
    (path / METRICS).write_bytes(b"".join(lines))
    return read_run(path)
