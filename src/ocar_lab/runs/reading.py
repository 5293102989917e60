"""Stored runs: what a run folder says, read while or after somebody writes it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ocar.errors import RunError
from ocar.events import Evaluated, Summary
from ocar_lab.runs.columns import Columns, summary_of
from ocar_lab.runs.folder import CHECKPOINT, CONFIG, DAMAGE, METRICS, STATUS, read_json
from ocar_lab.runs.lines import read_columns
from ocar_lab.runs.provenance import device_names, were_alone


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder, as it was when it was read."""

    path: Path
    """The folder."""

    document: Mapping[str, Any]
    """All of ``config.json``."""

    columns: Columns
    """Every evaluation so far, as arrays."""

    result: Mapping[str, Any] | None
    """The last line of ``metrics.jsonl`` if the run is finished."""

    status: Mapping[str, Any]
    """All of ``status.json``; empty if there is none."""

    @property
    def config(self) -> Mapping[str, Any]:
        """What decides the numbers, beside the seed."""
        return self.document["config"]

    @property
    def benchmark(self) -> str:
        """Name of the benchmark."""
        return str(self.config["benchmark"])

    @property
    def label(self) -> str:
        """Name of the method, as in a table; ``er-iid`` for ER with all classes in one task."""
        return str(self.document["label"])

    @property
    def hash(self) -> str:
        """What the configuration is known by."""
        return str(self.document["hash"])

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.document["seed"])

    @property
    def changed(self) -> Mapping[str, Any]:
        """Settings that were given other values than the preset's."""
        return self.document.get("changed", {})

    @property
    def sessions(self) -> list[Mapping[str, Any]]:
        """What each process that worked on the run said of itself, and the batch it began at."""
        said = list(self.status.get("sessions", []))
        if said and said[0].get("batch") == 0:
            return said
        # The status is lost; who began the run still stands beside the configuration.
        names = ("versions", "device", "git", "command", "time")
        begun = {name: self.document[name] for name in names if name in self.document}
        return [{**begun, "batch": 0}, *said]

    @property
    def device(self) -> str:
        """What the run was computed on."""
        return device_names(self.sessions)

    @property
    def alone(self) -> bool:
        """Whether no other run was done at the same time, as far as the run says."""
        return were_alone(self.sessions)

    @property
    def checkpoint(self) -> Path:
        """The checkpoint; the final state of the learner once the run is finished."""
        return self.path / CHECKPOINT

    @cached_property
    def history(self) -> tuple[Evaluated, ...]:
        """Every evaluation so far, as events.

        Raises:
            RunError: A number among them is none.
        """
        try:
            return self.columns.events()
        except DAMAGE as error:
            raise RunError(f"{self.path / METRICS} is damaged: {error}.") from error

    @property
    def evaluated(self) -> int:
        """How many evaluations that is; of a long stream not each is written down."""
        said = {} if self.result is None else self.result
        return int(said.get("evaluations", self.columns.evaluations))

    @cached_property
    def summary(self) -> Summary | None:
        """The metrics, computed anew from the lines; None if the run is not finished."""
        return summary_of(self.columns, self.result)

    @property
    def state(self) -> str:
        """``finished``, ``running``, ``stopped``, ``failed``, or ``killed``."""
        if self.summary is not None:
            return "finished"
        said = str(self.status.get("state", "killed"))
        if said in ("running", "finished"):  # the last process had no time to say otherwise
            return "running" if self._alive() else "killed"
        return said

    def _alive(self) -> bool:
        if self.status.get("host") != platform.node():
            return True  # not to be known from here
        try:
            os.kill(int(self.status["pid"]), 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True


def read_run(path: Path) -> Run:
    """Read a run folder.

    Raises:
        RunError: It is none, or a file in it is damaged.
    """
    document = read_json(path / CONFIG)
    missing = sorted({"config", "label", "hash", "seed"} - document.keys())
    if missing:
        raise RunError(f"{path / CONFIG} is not of a run: it lacks {', '.join(missing)}.")
    metrics = path / METRICS
    data = metrics.read_bytes() if metrics.exists() else b""
    status = read_json(path / STATUS) if (path / STATUS).exists() else {}
    try:
        columns, result = read_columns(data, metrics)
        run = Run(path=path, document=document, columns=columns, result=result, status=status)
        _ = (run.summary, run.state, run.seed, run.label, run.hash, run.device)
        _ = (run.benchmark, dict(run.changed), run.evaluated)  # every value that is looked at later
    except DAMAGE as error:
        raise RunError(f"{path} is damaged: {type(error).__name__}: {error}.") from error
    return run


def run_folders(root: Path) -> list[Path]:
    """Every run folder in a folder and in those below it, in the order of their paths.

    Raises:
        RunError: The folder does not exist.
    """
    if not root.is_dir():
        raise RunError(f"There is no folder {root}.")
    folders = sorted(config.parent for config in root.rglob(CONFIG))
    return [f for f in folders if (f / METRICS).exists() or (f / STATUS).exists()]


def find_runs(root: Path) -> list[Run]:
    """Every run in a folder and in those below it, in the order of their paths.

    Raises:
        RunError: The folder does not exist, or a run in it is damaged.
    """
    return [read_run(folder) for folder in run_folders(root)]
