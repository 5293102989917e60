"""Rows that a kernel writes into a column."""

import importlib

import pytest
import torch
from interpreter import NEEDS_TRITON, device_of_kernels

pytestmark = NEEDS_TRITON


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("size", [1, 5, 300])
@pytest.mark.parametrize("accepted", [None, True, False])
def test_rows_go_where_they_are_told_to(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, size: int, accepted: bool | None
) -> None:
    device = device_of_kernels(monkeypatch)
    column = torch.arange(7 * size, device=device).view(7, size).to(dtype)
    batch = (100 + torch.arange(4 * size, device=device)).view(4, size).to(dtype)
    places = torch.tensor([[6, 0, 3], [1, 3, 0]], device=device)
    expected = column.clone()
    if accepted is not False:
        expected[places[0]] = batch[places[1]]
    verdict = None if accepted is None else torch.tensor(accepted, device=device)
    compiled = importlib.import_module("ocar.accel.triton.rows")
    compiled.write_rows[3, -(-size // 128)](batch, column, places, verdict, 3, SIZE=size, BLOCK=128)
    assert torch.equal(column, expected)
