"""One process at a time in a folder.

The operating system holds the lock and lets go of it when the process ends, however it
ends, so a killed run leaves nothing behind that would have to be cleared away.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from types import TracebackType
from typing import IO

from ocar.errors import RunError

if sys.platform == "win32":
    import msvcrt

    def _take(file: IO[str]) -> None:
        file.seek(1 << 20)  # a byte far behind the text, which others may want to read
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _take(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FolderLock:
    """The right to write in a folder, taken by a ``with`` statement.

    Args:
        folder: The folder, which must exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[str] | None = None

    def __enter__(self) -> FolderLock:
        path = self.folder / ".lock"
        file = path.open("a+", encoding="utf-8")
        try:
            _take(file)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise RunError(
                f"{self.folder} is in use by {holder}. "
                "Wait until it ends, or stop it, and start again."
            ) from error
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        self._file = file
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
