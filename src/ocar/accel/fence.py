"""Order between the writes and the reads of tensors by several threads.

On a GPU the host only starts reads and writes. Each leaves an event behind that the other waits
for. Elsewhere nothing needs to wait.
"""

from __future__ import annotations

import torch


class Fence:
    """Keeps the reads and writes of some tensors on a device apart."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._written = torch.cuda.Event() if device.type == "cuda" else None
        self._reads: list[torch.cuda.Event] = []

    def before_write(self) -> None:
        """Let the current stream wait for all reads that were started."""
        for event in self._reads:
            event.wait(torch.cuda.current_stream(self._device))
        self._reads.clear()

    def after_write(self) -> None:
        """A write was started."""
        if self._written is not None:
            self._written.record(torch.cuda.current_stream(self._device))

    def before_read(self) -> None:
        """Let the current stream wait for the last write."""
        if self._written is not None:
            self._written.wait(torch.cuda.current_stream(self._device))

    def after_read(self) -> None:
        """A read was started."""
        if self._written is not None:
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self._device))
            self._reads = [event for event in self._reads if not event.query()] + [done]

    def finish(self) -> None:
        """Let the host wait for all reads, before the memory is given back."""
        for event in self._reads:
            event.synchronize()
