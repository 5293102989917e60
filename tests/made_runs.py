"""Runs and studies for tests of reports: written as runs and searches write them, from numbers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocar.evaluate import summarize
from ocar.events import Counts, Evaluated, Finished
from ocar_lab.report.live import Server
from ocar_lab.runs import Run, read_run
from ocar_lab.runs.folder import CONFIG, METRICS, STATUS
from ocar_lab.runs.records import evaluation_record, result_record, to_line
from ocar_lab.runs.studies import JOURNAL, NAME, STUDY


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


def write_study(
    folder: Path,
    space: Mapping[str, Mapping[str, Any]],
    trials: Sequence[tuple[Mapping[str, Any], float]],
) -> None:
    """A study folder with these trials: settings and value."""
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    config = {"benchmark": "split-digits", "method": "er", "objective": "validation accuracy"}
    text = json.dumps({"config": {**config, "space": space}})
    (folder / STUDY).write_text(text, encoding="utf-8")
    backend = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL))
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(storage=storage, study_name=NAME, direction="maximize")
    kinds = optuna.distributions
    parts = {
        name: kinds.CategoricalDistribution(part["values"])
        if "values" in part
        else kinds.FloatDistribution(part["low"], part["high"], log=part.get("log", False))
        for name, part in space.items()
    }
    for settings, value in trials:
        made = optuna.trial.create_trial(params=dict(settings), distributions=parts, value=value)
        study.add_trial(made)


def grow(run: Run, events: Sequence[Evaluated]) -> None:
    """Add evaluations to a run, as its process does."""
    with (run.path / METRICS).open("ab") as file:
        for event in events:
            file.write(to_line(evaluation_record(event, {})))


@contextmanager
def served(*folders: Path) -> Iterator[int]:
    """The port of a server on some folders."""
    with Server(folders, host="127.0.0.1", port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
