"""The folder that one run is written to.

::

    config.json             the full configuration, the seed, versions, device, revision, command
    metrics.jsonl           one line for each evaluation, one for the result; only grows
    checkpoint.safetensors  learner, stream position, length of metrics.jsonl; the checkpoint before
                            it is kept too, in case this one is damaged
    status.json             running, stopped, failed or finished; how far; which process
    .lock                   held by the process that works in the folder

Whole files are replaced atomically. A run that goes on from its checkpoint cuts off the lines that
were written after it, and writes them again. So a run that was killed at any moment, however often,
ends with the same metrics as one that was not.

The checkpoint and the result name their run, so that files of another run are refused. No file is
written through a link, symbolic or hard; the folder itself, and those above it, may be links.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ocar.errors import RunError
from ocar.files import (
    PARTIAL,
    NotRegularError,
    encode,
    folder_lock,
    naming,
    open_regular,
    printable_values,
    read_file,
    write_whole,
)
from ocar_lab.runs.provenance import differences, is_session, is_time, now
from ocar_lab.runs.records import Record, parse_lines, to_line

if TYPE_CHECKING:  # commands that only read runs do not import PyTorch
    from torch import Tensor

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
STATUS = "status.json"

MOST_JSON = 64 << 20
"""Largest JSON file that is read, in bytes."""

MOST_METRICS = 4 << 30
"""Largest ``metrics.jsonl`` that is read, in bytes."""

RUN = "run"
"""Name of :func:`run_name` in a checkpoint and in a result."""

DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What Python raises when a file holds values of the wrong type."""


def open_to_write(path: Path, *, buffering: int = -1) -> IO[bytes]:
    """Open a file to append to it.

    Raises:
        RunError: It is a link or no regular file.
    """
    try:
        return open_regular(path, "ab", buffering=buffering)
    except NotRegularError as error:
        raise RunError(
            f"{path} cannot be written: {error}. Replace it by a plain copy, or remove it."
        ) from error


def run_name(document: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a run from others, from ``config.json``."""
    config, own = document.get("config"), {n: document.get(n) for n in ("label", "hash", "seed")}
    return {"benchmark": config.get("benchmark") if isinstance(config, dict) else None, **own}


def check_owner(stored: Mapping[str, Any], document: Mapping[str, Any], path: Path) -> None:
    """Raise if a checkpoint or a result names another run; older ones name none."""
    named, own = stored.get(RUN), run_name(document)
    if named is not None and named != own:
        found = differences(named if isinstance(named, dict) else {}, own)
        raise RunError(
            f"{path} is of another run: {'; '.join(found)}. Move {path.parent} away to start again."
        )


class RunFolder:
    """A run folder to write to; entering it creates it and takes the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._exit = ExitStack()
        self._metrics: IO[bytes] | None = None
        self._digest = _digest(b"")
        self._status: dict[str, Any] = {}
        self._document: dict[str, Any] = {}

    def __enter__(self) -> RunFolder:
        self.path.mkdir(parents=True, exist_ok=True)
        self._exit.enter_context(folder_lock(self.path))
        for left in self.path.glob(f".*{PARTIAL}"):
            left.unlink(missing_ok=True)
        self._status = read_status(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def describe(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``config.json``, unless the folder has one, and return what it says.

        Args:
            document: ``config`` and ``seed``, which determine the numbers, and what else is to be
                recorded.

        Raises:
            RunError: The folder has another configuration or seed.
        """
        path = self.path / CONFIG
        if not path.exists():
            write_json(path, document)
        stored = read_json(path)
        wanted = printable_values(json.loads(json.dumps(document)))
        for part in ("config", "seed"):
            if stored.get(part) != wanted[part]:
                raise RunError(f"{path} has another {part}. Move the folder away to start again.")
        self._document = stored
        return stored

    @property
    def named(self) -> dict[str, Any]:
        """The run that :meth:`describe` described, by :data:`RUN`; empty before."""
        return {RUN: run_name(self._document)} if self._document else {}

    def restore(self) -> tuple[dict[str, Tensor], dict[str, Any], list[dict[str, Any]]] | None:
        """Load the checkpoint, and open the metrics where they were when it was saved.

        Returns:
            Tensors and values of the checkpoint, and the records up to it; None without one.

        Raises:
            CheckpointError: The checkpoint is damaged, and so is the one before it.
            RunError: The checkpoint is of another run, or the metrics are not those that it was
                saved with.
        """
        from ocar.state import load_newest, load_state, previous

        checkpoint = self.path / CHECKPOINT
        if not checkpoint.exists() and not previous(checkpoint).exists():
            self._open_metrics(b"")
            return None
        tensors, values = load_newest(checkpoint, load_state)
        if self._document:
            check_owner(values, self._document, checkpoint)
        values.pop(RUN, None)
        known = values.pop("metrics")
        path = self.path / METRICS
        data = read_metrics(self.path)[: known["bytes"]]
        if len(data) != known["bytes"] or _digest(data).hexdigest() != known["digest"]:
            raise RunError(
                f"{path} is not the file that {CHECKPOINT} was saved with. "
                f"Move {self.path} away to start again."
            )
        self._open_metrics(data)
        return tensors, values, parse_lines(data, path)

    def append(self, record: Record) -> None:
        """Add a line to the metrics."""
        assert self._metrics is not None, "restore() opens the metrics"
        line = to_line(record)
        with naming(self.path / METRICS):
            written = self._metrics.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._digest.update(line)

    def save(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Write a checkpoint that covers all lines so far.

        Raises:
            RunError: The folder is gone.
        """
        assert self._metrics is not None, "restore() opens the metrics"
        self._check_there()
        os.fsync(self._metrics.fileno())
        known = {"bytes": self._metrics.tell(), "digest": self._digest.hexdigest()}
        from ocar.state import save_state

        save_state(self.path / CHECKPOINT, tensors, {**values, **self.named, "metrics": known})

    @property
    def state(self) -> str | None:
        """The state that was set last."""
        state: str | None = self._status.get("state")
        return state

    def begin_session(self, session: Mapping[str, Any], *, batches: int = 0) -> None:
        """Add this process to the sessions in the status; ``batches`` in all, 0 if unknown."""
        sessions = [*self._status.get("sessions", []), dict(session)]
        self.set_status("running", sessions=sessions, error=None, batches=batches)

    def set_status(self, state: str, **values: Any) -> None:
        """Update the status; values that are not given stay.

        The state is ``"running"``, ``"stopped"``, ``"failed"`` or ``"finished"``.

        Raises:
            RunError: The folder is gone.
        """
        self._check_there()
        process = {"pid": os.getpid(), "host": platform.node(), "updated": now()}
        self._status = {**self._status, "state": state, **process, **values}
        write_json(self.path / STATUS, self._status)

    def _open_metrics(self, data: bytes) -> None:
        """Open the metrics after ``data``, their beginning, and cut off the rest."""
        self._digest = _digest(data)
        # Not buffered, so that a kill loses no line.
        file = self._exit.enter_context(open_to_write(self.path / METRICS, buffering=0))
        file.truncate(len(data))
        file.seek(len(data))
        self._metrics = file

    def _check_there(self) -> None:
        """Raise if the open metrics are no longer those of the folder."""
        if self._metrics is None:
            return
        with suppress(OSError):
            now_there = (self.path / METRICS).stat()
            if os.path.samestat(os.fstat(self._metrics.fileno()), now_there):
                return
        raise RunError(
            f"{self.path} was moved, deleted or replaced while a run worked in it: what it learned "
            "cannot be saved. The same command starts again."
        )


def read_metrics(path: Path) -> bytes:
    """The metrics of a run folder; empty if it has none.

    Raises:
        RunError: They cannot be read.
    """
    try:
        return read_file(path / METRICS, most=MOST_METRICS)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RunError(f"{path / METRICS} cannot be read: {error.strerror}.") from error


def read_status(path: Path) -> dict[str, Any]:
    """The status of a run folder; empty if it has none or a damaged one.

    No number depends on the status, so that damage to it stops nothing.
    """
    try:
        status = read_json(path / STATUS)
    except RunError:
        return {}
    sessions, process = status.get("sessions", []), status.get("pid", 0)
    fine = (
        isinstance(sessions, list)
        and all(map(is_session, sessions))
        and isinstance(process, int)
        and 0 <= process < 1 << 31
        and isinstance(status.get("state", ""), str)
        and isinstance(status.get("guarded", {}), dict)
        and is_time(status.get("updated"))
    )
    return status if fine else {}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, with its texts :func:`~ocar.files.printable`.

    Raises:
        RunError: The file cannot be read or holds no object.
    """
    try:
        value = printable_values(json.loads(read_file(path, most=MOST_JSON)))
    except json.JSONDecodeError as error:
        raise RunError(
            f"{path} cannot be read: it is no JSON, or damaged ({error}). Restore the file, or "
            "move it away."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: it holds no object.")
    return value


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object to a JSON file; the file appears whole or not at all."""
    write_whole(path, encode(json.dumps(values, indent=1, ensure_ascii=False)) + b"\n")


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Raise a ``RunError`` that names the file if its content makes no sense inside."""
    try:
        yield
    except DAMAGE as error:
        raise RunError(f"{path} is damaged: {type(error).__name__}: {error}.") from error


def _digest(data: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)
