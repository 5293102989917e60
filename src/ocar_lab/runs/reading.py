"""One stored run: what its folder says, read while or after it is written."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ocar.errors import RunError
from ocar.events import Evaluated, Summary
from ocar_lab.published import SPLITS
from ocar_lab.runs.columns import Columns, summary_of
from ocar_lab.runs.folder import (
    CHECKPOINT,
    CONFIG,
    DAMAGE,
    METRICS,
    RUN,
    check_owner,
    naming_damage,
    read_json,
    read_metrics,
    read_status,
)
from ocar_lab.runs.provenance import device_names, is_session
from ocar_lab.runs.records import FINISHED, parse_lines, read_columns
from ocar_lab.runs.versions import changed_since

MOST_SEED = 2**63 - 1
"""What a column of a table can hold."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run, read from its folder (:class:`Run`) or from a result file (``KeptRun``)."""

    path: Path  #: Folder or file.
    config: Mapping[str, Any]  #: Everything that determines the numbers, except the seed.
    label: str  #: The method's name in tables; ``er-iid`` is ER with all classes in one task.
    hash: str  #: Hash of the configuration.
    changed: Mapping[str, Any]  #: Settings that differ from the preset and the protocol.
    seed: int  #: The seed.
    sessions: Sequence[Mapping[str, Any]]
    """A description of each process that worked on the run, with the batch it began at."""

    state: str  #: ``finished``, ``running``, ``stopped``, ``failed`` or ``killed``.
    evaluated: int  #: Number of evaluations; a long stream does not store each of them.
    summary: Summary | None  #: The metrics; None if the run is not finished.

    @property
    def benchmark(self) -> str:
        """Name of the benchmark."""
        return str(self.config["benchmark"])

    @property
    def key(self) -> tuple[str, str, str]:
        """Benchmark, method and hash: the same for all seeds of a configuration."""
        return self.benchmark, self.label, self.hash

    @property
    def splits(self) -> str:
        """How class order and validation data follow from the seed."""
        return str(self.config.get("splits", "own"))

    @property
    def device(self) -> str:
        """The device, or several."""
        return device_names(self.sessions)

    @property
    def alone(self) -> bool:
        """Whether every session says that no other run shared its process."""
        return all(session.get("beside") == 0 for session in self.sessions)


@dataclass(frozen=True, kw_only=True)
class Run(Measured):
    """A run folder, as it was when it was read."""

    document: Mapping[str, Any]  #: All of ``config.json``.
    columns: Columns  #: The evaluations so far.
    result: Mapping[str, Any] | None  #: The last line of ``metrics.jsonl`` of a finished run.
    status: Mapping[str, Any]  #: All of ``status.json``; empty if there is none.

    @property
    def checkpoint(self) -> Path:
        """The checkpoint; the final state of the learner once the run is finished."""
        return self.path / CHECKPOINT

    @cached_property
    def history(self) -> tuple[Evaluated, ...]:
        """The evaluations so far, as events.

        Raises:
            RunError: A number is invalid.
        """
        try:
            return self.columns.events()
        except DAMAGE as error:
            raise RunError(f"{self.path / METRICS} is damaged: {error}.") from error


def read_run(path: Path) -> Run:
    """Read a run folder.

    Raises:
        RunError: It is no run folder, or a file in it is damaged.
    """
    document = read_json(path / CONFIG)
    missing = sorted({"config", "label", "hash", "seed"} - document.keys())
    if missing:
        raise RunError(f"{path / CONFIG} is not of a run: it lacks {', '.join(missing)}.")
    status = read_status(path)
    with naming_damage(path):
        seed = read_seed(document["seed"])
        columns, result = read_columns(read_metrics(path), path / METRICS)
        check_owner(result or {}, document, path / METRICS)
        summary = summary_of(columns, result)
        run = Run(
            path=path,
            config=document["config"],
            label=str(document["label"]),
            hash=str(document["hash"]),
            changed=read_changed(document),
            seed=seed,
            sessions=_sessions(document, status),
            state="finished" if summary is not None else _state(status),
            evaluated=int((result or {}).get("evaluations", columns.evaluations)),
            summary=summary,
            document=document,
            columns=columns,
            result=result,
            status=status,
        )
        _ = (run.benchmark, run.device)  # so that damage is found here and not later
    return run


def read_seed(seed: Any) -> int:
    """The seed in a document.

    Raises:
        ValueError: It is none.
    """
    if type(seed) is not int or not 0 <= seed <= MOST_SEED:
        raise ValueError(f"the seed is {seed!r}")
    return seed


def read_changed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that differ from the preset.

    Runs of earlier versions do not name their splits, and may differ from the present preset.
    """
    config = document["config"]
    changed = changed_since(config, document.get("changed", {}))
    own = config["benchmark"] in SPLITS and "splits" not in config
    return changed | ({"splits": "own"} if own else {})


def is_finished(path: Path) -> bool:
    """Whether a run folder holds a result. Unlike :func:`read_run` it needs no optional package.

    Raises:
        RunError: The metrics are damaged, or the result is of another run.
    """
    records = parse_lines(read_metrics(path), path / METRICS)
    if not records or records[-1]["event"] != FINISHED:
        return False
    if RUN in records[-1]:
        check_owner(records[-1], read_json(path / CONFIG), path / METRICS)
    return True


def _sessions(document: Mapping[str, Any], status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    known = list(status.get("sessions", []))
    if known and known[0].get("batch") == 0:
        return known
    # Without a status, config.json still describes the first process.
    names = ("versions", "device", "git", "command", "time")
    first = {n: document[n] for n in names if n in document} | {"batch": 0}
    if not is_session(first):
        raise ValueError(f"{CONFIG} does not describe a process")
    return [first, *known]


def _state(status: Mapping[str, Any]) -> str:
    """The state of a run without a result."""
    state = str(status.get("state", "killed"))
    if state not in ("running", "finished"):
        return state
    # The last process may have been killed before it could say so.
    return "running" if is_alive(status.get("pid"), status.get("host")) else "killed"


def is_alive(pid: Any, host: object) -> bool:
    """Whether a process is alive; a process of another machine is taken to be.

    Raises:
        TypeError: Of this machine, without a number.
    """
    if host != platform.node():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
