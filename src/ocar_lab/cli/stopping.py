"""Ctrl-C and SIGTERM ask to save and leave; a second Ctrl-C leaves at once."""

from __future__ import annotations

import signal
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the user has asked to stop; handles signals inside its ``with`` statement."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.asked

    def __enter__(self) -> StopRequest:
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
