"""Numbers of a device, brought to the host while it goes on with other work."""

from __future__ import annotations

import torch
from torch import Tensor


class Later:
    """A tensor that is read later, when what makes it is done; what comes after is not waited for.

    Args:
        tensor: On any device, made on its current stream.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._host, self._there = tensor.detach(), None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor.detach(), non_blocking=True)
            self._there = torch.cuda.Event()
            self._there.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> Tensor:
        """The tensor on the host, or where it is if that is no GPU."""
        if self._there is not None:
            self._there.synchronize()
        return self._host

    def __float__(self) -> float:
        return float(self.read())
