"""Move values between a device and the host without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsFloat

import torch
from torch import Tensor


class Later:
    """A copy of a tensor that the host reads later.

    The copy is taken now, in the order of the device's work: the tensor was written by the current
    stream. Reading waits for this copy only.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._host, self._copied = tensor.detach(), None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor.detach(), non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> Tensor:
        """The values, on the host if they were on a GPU."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host

    def __float__(self) -> float:
        return float(self.read())


def now(tensor: Tensor) -> SupportsFloat:
    """The present value of a scalar; from a GPU it is read when it is needed."""
    return Later(tensor) if tensor.is_cuda else float(tensor)


def apply_in_order(
    operations: Sequence[Callable[[Tensor], Tensor]], x: Tensor, order: Tensor
) -> Tensor:
    """Apply operations one after another, in an order that is itself a tensor.

    Reading the order from a GPU would wait for it. There every operation is computed at every
    position, and the result of one is selected. The order has each of 0..k − 1 once, ``(k,)``.
    """
    if order.is_cpu:
        for index in order.tolist():
            x = operations[index](x)
        return x
    return _apply_selected(operations, x, order)


def _apply_selected(
    operations: Sequence[Callable[[Tensor], Tensor]], x: Tensor, order: Tensor
) -> Tensor:
    for position in range(len(operations)):
        every = torch.stack([operation(x) for operation in operations])
        x = every.index_select(0, order[position].view(1)).squeeze(0)
    return x
