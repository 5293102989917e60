"""One process at a time in a folder, by ``filelock`` (which PyTorch installs).

The operating system holds the lock and drops it when the process ends, however it ends: a killed
run leaves nothing to clean up. The lock file names its holder, for the error of the next process.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ocar.errors import RunError


class FolderLock:
    """The right to write in a folder, held by a ``with`` statement.

    Args:
        folder: The folder, which must exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A generator may be closed by another thread than the one that entered it.
        self._lock = FileLock(folder / ".lock", timeout=0, thread_local=False)

    def __enter__(self) -> FolderLock:
        path = self.folder / ".lock"
        try:
            self._lock.acquire()
        except Timeout as error:
            holder = ""
            with suppress(OSError):  # Windows does not let a locked file be read
                holder = path.read_text(encoding="utf-8").strip()
            raise RunError(
                f"{self.folder} is in use by {holder or 'another process'}. "
                "Wait until it ends, or stop it, and start again."
            ) from error
        with suppress(OSError):
            path.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
