"""Watch a reader of a hostile file: no other files, no processes, bounded time and memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ocar.errors import OcarError

SECONDS = 10.0
"""Time limit of one input; the readers take milliseconds, so a busy machine does not matter."""

_WRITES = {
    "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate",
    "os.chmod", "os.chown", "shutil.move", "shutil.rmtree", "shutil.unpack_archive",
}  # fmt: skip
_NEVER = {
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen",
    "socket.connect", "pickle.find_class", "ctypes.dlopen",
}  # fmt: skip


class Hang(BaseException):
    """An input took too long; no ``Exception``, since readers convert these to their own."""


class Guard:
    """Watches one call at a time, in a process of its own.

    Args:
        folder: The only folder that may be written to.
        base: Bytes that any input may take.
        factor: Bytes more for each byte of the input.
        spare: Further address space of the process, in bytes.
    """

    def __init__(self, folder: Path, *, base: int, factor: int, spare: int = 3 << 30) -> None:
        self.folder = str(folder.resolve()) + os.sep
        self.base, self.factor = base, factor
        self.broken: list[str] = []
        self.watching = False
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGALRM, self._alarm)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + spare
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        warnings.simplefilter("ignore")
        tracemalloc.start()

    def call(self, target: Callable[[bytes], object], data: bytes) -> tuple[bool, str]:
        """Feed an input to a target.

        Returns:
            Whether it was accepted, and what went wrong; empty if nothing did.
        """
        self.broken.clear()
        allowed = self.base + self.factor * len(data)
        tracemalloc.reset_peak()
        before, resident = tracemalloc.get_traced_memory()[0], _resident()
        accepted, wrong = False, ""
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        self.watching = True
        try:
            target(data)
            accepted = True
        except OcarError as error:
            if _short_of_memory(error):
                wrong = f"no memory: {error}"
        except Hang:
            wrong = f"it took more than {SECONDS} s"
        except BaseException as error:  # noqa: BLE001 any of these is a finding
            wrong = f"{type(error).__name__}: {error}"
        finally:
            self.watching = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        taken = max(tracemalloc.get_traced_memory()[1] - before, _resident() - resident)
        if self.broken:
            wrong = "; ".join(self.broken)
        elif not wrong and taken > allowed:
            wrong = f"it took {taken:,} bytes for {len(data):,}, allowed are {allowed:,}"
        return accepted, wrong[:500]

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event in _NEVER:
            self.broken.append(f"{event} {args!r:.200}")
        elif event == "open":
            path, _, flags = args
            writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            if isinstance(path, str | bytes | os.PathLike) and flags & writes:
                self._inside(event, path)
        elif event in _WRITES:
            for path in args:
                if isinstance(path, str | bytes | os.PathLike):
                    self._inside(event, path)

    def _inside(self, event: str, path: Any) -> None:
        full = os.path.realpath(os.fsdecode(path))
        if not (full + os.sep).startswith(self.folder):
            self.broken.append(f"{event} outside of its folder: {full!r:.200}")

    def _alarm(self, *_: object) -> None:
        raise Hang


def _resident() -> int:
    """Peak resident bytes, including memory that Python does not count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _short_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
