"""Gradients of linear layers as products of few rows, where they are such products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.accel import RowRecorder, inputs_only


def record(layer: nn.Linear, *inputs: Tensor) -> tuple[RowRecorder, Tensor]:
    recorder = RowRecorder({"layer": layer, "conv": nn.Conv2d(1, 1, 1)})
    with recorder.recording():
        loss = sum((layer(x).sin().sum() for x in inputs), torch.zeros(()))
    return recorder, loss


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_the_gradient(bias: bool, dtype: torch.dtype) -> None:
    layer, x = nn.Linear(6, 8, bias=bias).to(dtype), torch.randn(5, 6, dtype=dtype)
    recorder, loss = record(layer, x)
    assert recorder.rows("layer") is None  # no backward pass yet
    loss.backward()
    found = recorder.rows("layer")
    assert found is not None
    product = found[1].mT @ found[0]
    assert_close(product[:, :6], layer.weight.grad)
    assert product.shape == (8, 6 + bias)
    if bias:
        assert_close(product[:, 6], layer.bias.grad)


def test_several_calls_and_several_locations_are_more_rows() -> None:
    layer = nn.Linear(6, 12)
    recorder, loss = record(layer, torch.randn(2, 3, 6), torch.randn(4, 6))
    loss.backward()
    found = recorder.rows("layer")
    assert found is not None
    assert found[0].shape == (10, 7)
    assert_close((found[1].mT @ found[0])[:, :6], layer.weight.grad)


def test_as_many_rows_as_outputs_do_not_pay() -> None:
    layer = nn.Linear(6, 5)
    recorder, loss = record(layer, torch.randn(5, 6))
    loss.backward()
    assert recorder.rows("layer") is None


@pytest.mark.parametrize("what", ["weight", "bias"])
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_rows_that_are_not_the_gradient_are_refused(what: str, size: float) -> None:
    """A penalty, or another gradient that was there before."""
    layer = nn.Linear(6, 8).double()
    recorder, loss = record(layer, torch.randn(5, 6, dtype=torch.float64))
    (loss + size * getattr(layer, what).square().sum()).backward()
    assert recorder.rows("layer") is None
    recorder, loss = record(layer, torch.randn(5, 6, dtype=torch.float64))
    loss.backward()  # added to the gradient of before
    assert recorder.rows("layer") is None
    layer.zero_grad()
    recorder, loss = record(layer, torch.randn(5, 6, dtype=torch.float64))
    loss.backward()
    assert recorder.rows("layer") is not None


def test_one_wrong_number_is_noticed() -> None:
    layer = nn.Linear(6, 8).double()
    recorder, loss = record(layer, torch.randn(5, 6, dtype=torch.float64))
    loss.backward()
    for row in range(8):
        for column in range(6):
            before = layer.weight.grad[row, column].clone()
            layer.weight.grad[row, column] += 1e-6
            assert recorder.rows("layer") is None
            layer.weight.grad[row, column] = before
    assert recorder.rows("layer") is not None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_are_refused(bad: float) -> None:
    layer, x = nn.Linear(6, 8), torch.randn(5, 6)
    x[0, 0] = bad
    recorder, loss = record(layer, x)
    loss.backward()
    assert recorder.rows("layer") is None


def test_columns_of_the_fisher_are_not_taken_for_gradients() -> None:
    layer, x = nn.Linear(6, 8), torch.randn(5, 6)
    recorder = RowRecorder({"layer": layer})
    with recorder.recording():
        y = layer(x)
    with inputs_only():
        torch.autograd.grad(y, layer.weight, torch.randn_like(y), retain_graph=True)
    assert recorder.rows("layer") is None
    y.square().sum().backward()
    assert recorder.rows("layer") is not None


def test_the_last_of_several_backward_passes_counts() -> None:
    layer, x = nn.Linear(6, 8), torch.randn(5, 6)
    recorder = RowRecorder({"layer": layer})
    with recorder.recording():
        y = layer(x)
    torch.autograd.grad(y.sum(), layer.weight, retain_graph=True)
    y.square().sum().backward()
    found = recorder.rows("layer")
    assert found is not None
    assert_close((found[1].mT @ found[0])[:, :6], layer.weight.grad)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_frozen_parameters(frozen: str) -> None:
    layer = nn.Linear(6, 8)
    getattr(layer, frozen).requires_grad_(False)
    recorder, loss = record(layer, torch.randn(5, 6))
    loss.backward()
    found = recorder.rows("layer")
    if frozen == "weight":
        assert found is None
    else:
        assert found is not None
        assert found[0].shape == (5, 6)


def test_half_precision_is_refused() -> None:
    layer = nn.Linear(6, 8).bfloat16()
    recorder, loss = record(layer, torch.randn(5, 6).bfloat16())
    loss.backward()
    assert recorder.rows("layer") is None


def test_hooks_are_gone_afterwards_and_records_at_the_next_pass() -> None:
    layer, x = nn.Linear(6, 8), torch.randn(5, 6)
    recorder = RowRecorder({"layer": layer})
    with recorder.recording():
        assert layer._forward_hooks
    assert not layer._forward_hooks
    with pytest.raises(ZeroDivisionError), recorder.recording():
        raise ZeroDivisionError
    assert not layer._forward_hooks
    with recorder.recording(), torch.no_grad():
        layer(x)
    assert recorder.rows("layer") is None
    with recorder.recording():
        y = layer(x)
    y.sum().backward()
    assert recorder.rows("layer") is not None
    with recorder.recording():
        pass
    assert recorder.rows("layer") is None
    assert recorder.rows("conv") is None
