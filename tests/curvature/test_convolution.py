"""Convolutions whose backward pass to the input is a convolution too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocar.accel.convolution import inputs_only, turned_kernels

TRICK = {
    "3x3": {"kernel_size": 3, "padding": 1},
    "no padding": {"kernel_size": 3},
    "bias": {"kernel_size": 3, "padding": 1, "bias": True},
    "flat": {"kernel_size": (1, 5), "padding": (0, 3)},
    "1x1": {"kernel_size": 1},
    "wide padding": {"kernel_size": 3, "padding": 2},
}
LEFT_ALONE = {
    "stride": {"kernel_size": 3, "stride": 2},
    "dilation": {"kernel_size": 3, "dilation": 2},
    "groups": {"kernel_size": 3, "groups": 2},
    "reflection": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "named padding": {"kernel_size": 3, "padding": "same"},
    "more padding than kernel": {"kernel_size": 3, "padding": 3},
}


def layer(settings: dict[str, object]) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(4, 6, **{"bias": False, **settings}).double()


def derivatives(conv: nn.Conv2d, x: Tensor, g: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = conv(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *conv.parameters()], g)]


@pytest.mark.parametrize("settings", TRICK.values(), ids=list(TRICK))
def test_the_same_output_and_gradients(settings: dict[str, object]) -> None:
    conv = layer(settings)
    x = torch.randn(3, 4, 7, 8, dtype=torch.float64)
    g = torch.randn_like(conv(x))
    wanted = derivatives(conv, x, g)
    with turned_kernels([conv]):
        assert "forward" in conv.__dict__
        found = derivatives(conv, x, g)
    assert "forward" not in conv.__dict__
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settings", LEFT_ALONE.values(), ids=list(LEFT_ALONE))
def test_others_are_left_alone(settings: dict[str, object]) -> None:
    conv = layer(settings)
    with turned_kernels([conv, nn.Linear(2, 2), nn.ConvTranspose2d(1, 1, 3)]):
        assert "forward" not in conv.__dict__


def test_many_columns_are_one_after_another() -> None:
    first, second = layer(TRICK["3x3"]), nn.Conv2d(6, 2, 3, padding=1).double()
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    with turned_kernels([first, second]):
        y = second(torch.tanh(first(x)))
    columns = torch.randn(4, *y.shape, dtype=torch.float64)

    def pull_back(column: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, column, retain_graph=True)[0]

    with inputs_only():
        together = torch.func.vmap(pull_back)(columns)
    with inputs_only():
        alone = torch.stack([pull_back(column) for column in columns])
    plain = second(torch.tanh(first(x)))
    wanted = torch.stack(
        [torch.autograd.grad(plain, x, column, retain_graph=True)[0] for column in columns]
    )
    torch.testing.assert_close(together, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(alone, wanted, rtol=1e-12, atol=1e-12)


def test_no_weight_gradient_while_pulling_back() -> None:
    conv = layer(TRICK["bias"])
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    with turned_kernels([conv]):
        y = conv(x)
    with inputs_only():
        grads = torch.autograd.grad(
            y.sum(), [x, *conv.parameters()], retain_graph=True, allow_unused=True
        )
    assert [grad is None for grad in grads] == [False, True, True]
    assert all(g is not None for g in torch.autograd.grad(y.sum(), [x, *conv.parameters()]))


def test_an_error_inside_leaves_nothing_behind() -> None:
    conv = layer(TRICK["3x3"])
    with pytest.raises(RuntimeError), turned_kernels([conv]):
        conv(torch.randn(1, 3, 5, 5, dtype=torch.float64))
    assert "forward" not in conv.__dict__
    with pytest.raises(ZeroDivisionError), inputs_only():
        raise ZeroDivisionError
    y = conv(x := torch.randn(1, 4, 5, 5, dtype=torch.float64))
    wanted = functional.conv2d(x, conv.weight, padding=1)
    torch.testing.assert_close(y, wanted)
