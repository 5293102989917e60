"""How far a figure is: a line that counts in a terminal, else one line for each part."""

from __future__ import annotations

import sys
import time


class Meter:
    """Tells of the parts of a figure as they are made."""

    def __init__(self) -> None:
        self._name = ""
        self._begun = 0.0
        self._told = 0.0

    def begin(self, name: str) -> None:
        """A part is about to be made."""
        self.end()
        self._name, self._begun = name, time.monotonic()
        if not sys.stderr.isatty():
            sys.stderr.write(f"{name}: begun\n")

    def __call__(self, done: int, total: int) -> None:
        """So many batches of it are done."""
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._told > 0.2:
            self._told = now
            of = f" of {total}" if total else ""
            sys.stderr.write(f"\r\033[K{self._name}: batch {done}{of}")
            sys.stderr.flush()

    def end(self) -> None:
        """The part that was begun last is made."""
        if self._name:
            clear = "\r\033[K" if sys.stderr.isatty() else ""
            seconds = time.monotonic() - self._begun
            sys.stderr.write(f"{clear}{self._name}: {seconds:.0f} s\n")
            self._name = ""
