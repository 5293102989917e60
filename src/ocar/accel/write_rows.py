"""Write samples into the columns of a memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ocar.accel.operation import has_triton, launch, operation

_TYPES = torch.uint8, torch.int64, torch.float32, torch.float64  # that the kernel writes
_BLOCK = 1024  # numbers that a program writes


@operation
def write_rows(
    columns: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    writes: Mapping[int, int],
    accepted: Tensor | None = None,
) -> None:
    """Write rows of a batch over rows of columns, unless they are not accepted.

    Args:
        columns: Each ``(capacity, *item)``, on one device.
        batch: Under the same names, ``(n, *item)``, on any device.
        writes: The row of the batch that each written row of the columns gets.
        accepted: A scalar of bool on the device of the columns; None for yes.
    """
    places = torch.tensor([[*writes], [*writes.values()]])
    for name, given in batch.items():
        column = columns[name]
        ahead = not column.is_cpu  # the host must not read a copy that is under way
        picks = places[1].to(given.device, non_blocking=True)
        new = given.detach().index_select(0, picks).to(column.device, non_blocking=ahead)
        index = places[0].to(column.device, non_blocking=True)
        if accepted is not None:
            new = torch.where(accepted, new, column.index_select(0, index))
        column.index_copy_(0, index, new)


def _fits(columns: Mapping[str, Tensor], batch: Mapping[str, Tensor], *others: object) -> bool:
    return has_triton(*columns.values()) and all(c.dtype in _TYPES for c in batch.values())


@write_rows.implementation("triton", when=_fits)
def _write_rows_by_kernel(
    columns: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    writes: Mapping[int, int],
    accepted: Tensor | None = None,
) -> None:
    from ocar.accel.triton import write_rows as kernels

    device = next(iter(columns.values())).device
    places = torch.tensor([[*writes], [*writes.values()]]).to(device, non_blocking=True)
    for name, given in batch.items():
        column = columns[name]
        new = given.detach().to(device, non_blocking=True).contiguous()
        size = column[0].numel()
        launch(
            kernels.write_rows,
            (len(writes), -(-size // _BLOCK)),
            *(new, column, places, accepted, len(writes)),
            SIZE=size,
            BLOCK=_BLOCK,
        )
