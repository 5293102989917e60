"""File-system faults at any call: kills, torn writes, full disks, broken disks, losses of power.

:func:`attempt` forks, lets the child do some work, and puts one fault at the N-th call that changes
or opens a file under a folder: open, write, fsync, rename, link, unlink, truncate, mkdir. What the
work does is seen through Python's ``os`` and ``io``, so it must not write by other means.

Fork from a process without threads: tests start a script of their own for it.
"""

from __future__ import annotations

import errno
import faulthandler
import io
import json
import os
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 600
"""Seconds after which a process hangs, however busy the machine is."""

KINDS = (
    "kill before",  # SIGKILL before the call
    "kill after",
    "torn",  # half of a write, then SIGKILL
    "ENOSPC",  # half of a write, then the error; other calls fail
    "EIO",
    "full disk",  # ENOSPC, also of every later call that needs room
    "broken disk",  # EIO, also of every later call
    "power",  # SIGKILL, and only what was synced is there: names and contents
    "power, zeros",  # the same with all names; what was not synced is zeros
)

Tell = Callable[[object], None]

_PATHS = ("open", "rename", "replace", "link", "unlink", "remove", "truncate", "mkdir", "rmdir")
_HANDLES = ("write", "pwrite", "fsync", "fdatasync", "ftruncate")
_NEEDS_ROOM = {"open", "write", "pwrite", "link", "mkdir", "rename", "replace"}


class Outcome(NamedTuple):
    """What came of an attempt."""

    told: list[Any]
    """What the work told before it ended or was killed."""
    killed: bool
    calls: list[str]
    """The calls, if it was not killed."""


def attempt(work: Callable[[Tell], None], root: Path, *, at: int = 0, kind: str = "") -> Outcome:
    """Do some work in a child, with a fault at its ``at``-th call under ``root``, from 1.

    Raises:
        AssertionError: The work raised; a fault has to be handled or end the process.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        write = os.write
        faulthandler.dump_traceback_later(PATIENCE, exit=True)

        def tell(value: object) -> None:
            write(writing, json.dumps(value).encode() + b"\n")

        try:
            os.close(reading)
            faults = Faults(root, at, kind)
            faults.install()
            work(tell)
            faults.active = False
            tell({"calls": faults.calls})
        except BaseException:  # noqa: BLE001 (the parent raises it)
            tell({"error": traceback.format_exc()})
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = [json.loads(line) for line in pipe]
    status = os.waitpid(child, 0)[1]
    last = told.pop() if told and isinstance(told[-1], dict) else {}
    assert "error" not in last, f"{kind} at call {at}: {last['error']}"
    assert os.WIFSIGNALED(status) or "calls" in last, f"{kind} at call {at}: it hangs"
    return Outcome(told, os.WIFSIGNALED(status), last.get("calls", []))


class Faults:
    """Counts the calls of this process under a folder, and spoils one or all from one on."""

    def __init__(self, root: Path, at: int, kind: str) -> None:
        assert not kind or kind in KINDS
        self.root, self.at, self.kind = os.path.realpath(root), at, kind
        self.active = True
        self.calls: list[str] = []
        self._lock = threading.RLock()
        self._disk = Disk(Path(self.root)) if kind.startswith("power") else None

    def install(self) -> None:
        """Replace the functions of this process, for good."""
        for name in (*_PATHS, *_HANDLES):
            setattr(os, name, self._counted(name, getattr(os, name)))
        opened, faults = io.open, self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                return faults.call("write", self.fileno(), super().write, data)

            def truncate(self, size: int | None = None) -> int:
                return faults.call("ftruncate", self.fileno(), super().truncate, size)

        def hooked(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+"):
                return opened(file, mode, buffering, *rest, **more)
            raw = faults.call("open", file, Raw, file, mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            whole = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return whole if "b" in mode else io.TextIOWrapper(whole, *rest, **more)

        io.open = hooked  # type: ignore[assignment]

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(where: Any, *rest: Any, **more: Any) -> Any:
            return self.call(name, where, function, where, *rest, **more)

        return counted

    def call(
        self, name: str, where: Any, function: Callable[..., Any], *args: Any, **kw: Any
    ) -> Any:
        """Do a call, or what a fault makes of it."""
        if not self.active or not self._inside(where):
            return function(*args, **kw)
        with self._lock:
            self.calls.append(name)
            count = len(self.calls)
            for_good = self.kind in ("full disk", "broken disk")
            if not self.at or count < self.at or (count > self.at and not for_good):
                result = function(*args, **kw)
                self._synced(name, where)
                return result
            return self._spoil(name, where, function, args, kw)

    def _spoil(
        self, name: str, where: Any, function: Callable[..., Any], args: Any, kw: Any
    ) -> Any:
        first = len(self.calls) == self.at
        if self.kind in ("kill before", "power", "power, zeros"):
            self._die()
        if name == "write" and first and self.kind in ("torn", "ENOSPC", "full disk"):
            half = memoryview(args[-1])[: len(args[-1]) // 2]
            written = function(*args[:-1], half)
            if self.kind == "torn":
                self._die()
            if self.kind == "ENOSPC":
                self.at, self.kind = self.at + 1, "no room"  # the rest does not fit
            return written
        if self.kind in ("kill after", "torn"):
            try:
                function(*args, **kw)
            finally:
                self._die()
        code = errno.EIO if self.kind in ("EIO", "broken disk") else errno.ENOSPC
        if self.kind == "full disk" and name not in _NEEDS_ROOM:
            return function(*args, **kw)
        raise OSError(code, os.strerror(code))

    def _inside(self, where: Any) -> bool:
        if isinstance(where, int):
            path = str(_behind(where)).removesuffix(" (deleted)")
        else:
            path = str(Path(where).absolute())
        return path == self.root or path.startswith(self.root + os.sep)

    def _synced(self, name: str, where: Any) -> None:
        if self._disk is not None and name in ("fsync", "fdatasync"):
            self._disk.sync(where)

    def _die(self) -> None:
        self.active = False
        if self._disk is not None:
            self._disk.lose_power(zeros=self.kind.endswith("zeros"))
        os.kill(os.getpid(), signal.SIGKILL)


def _behind(handle: int) -> Path:
    """What an open file is called."""
    return Path(f"/proc/self/fd/{handle}").readlink()


class Disk:
    """What a disk holds of a flat folder: contents that were synced, names that were synced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: list[int] = []  # an inode that is open is not given to another file
        self._names = self._listed()
        self._contents = {
            inode: (folder / name).read_bytes() for name, inode in self._names.items()
        }

    def _listed(self) -> dict[str, int]:
        found = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                found[entry.name] = entry.inode()
        return found

    def sync(self, handle: int) -> None:
        """A file or the folder has been synced."""
        if _behind(handle).is_dir():
            self._names = self._listed()
            return
        size = os.fstat(handle).st_size
        self._kept.append(os.dup(handle))
        with Path(f"/proc/self/fd/{handle}").open("rb") as file:
            self._contents[os.fstat(handle).st_ino] = file.read(size)

    def lose_power(self, *, zeros: bool) -> None:
        """Make the folder what a disk would show after the power is back."""
        now = self._listed()
        sizes = {inode: (self.folder / name).stat().st_size for name, inode in now.items()}
        for name in now:
            (self.folder / name).unlink()
        for name, inode in (now if zeros else self._names).items():
            content = self._contents.get(inode, b"")
            size = sizes.get(inode, 0) if zeros else 0
            (self.folder / name).write_bytes(content.ljust(size, b"\0"))
