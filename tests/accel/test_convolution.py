"""Convolutions with a faster backward pass, and the backward pass of a step, against autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import torch
from implementations import module, on_gpu
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from ocar.accel import Backward
from ocar.accel import weight_gradients as operation
from ocar.accel.convolution import (
    FlippedKernels,
    can_flip,
    fast_backward,
    inputs_only,
    is_plain,
    is_pulling_back,
)
from ocar.accel.streams import Side
from ocar.accel.weight_gradients import WeightGradients, _fits_kernel

TIGHT = {"rtol": 1e-12, "atol": 1e-12}
FLIPPED: dict[str, dict[str, Any]] = {
    "3x3": {"kernel_size": 3, "padding": 1},
    "no padding": {"kernel_size": 3},
    "bias": {"kernel_size": 3, "padding": 1, "bias": True},
    "flat": {"kernel_size": (1, 5), "padding": (0, 3)},
    "1x1": {"kernel_size": 1},
    "wide padding": {"kernel_size": 3, "padding": 2},
}
NOT_FLIPPED: dict[str, dict[str, Any]] = {
    "stride": {"kernel_size": 3, "stride": 2},
    "dilation": {"kernel_size": 3, "dilation": 2},
    "groups": {"kernel_size": 3, "groups": 2},
    "more padding than kernel": {"kernel_size": 3, "padding": 3},
}
NOT_PLAIN: dict[str, dict[str, Any]] = {
    "reflection": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "named padding": {"kernel_size": 3, "padding": "same"},
}


def layer(options: dict[str, Any], *, last: bool = False) -> nn.Conv2d:
    conv = nn.Conv2d(4, 6, **{"bias": False, **options}).double()
    return conv.to(memory_format=torch.channels_last) if last else conv


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def derivatives(conv: nn.Conv2d, x: Tensor, g: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = conv(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *conv.parameters()], g)]


# --- one layer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [*FLIPPED.values(), *NOT_FLIPPED.values()], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("in_advance", [False, True])
def test_output_and_gradients_are_those_of_pytorch(
    options: dict[str, Any], last: bool, in_advance: bool
) -> None:
    conv, x = layer(options, last=last), numbers(3, 4, 7, 8)
    g = torch.randn_like(conv(x))
    expected = derivatives(conv, x, g)
    with fast_backward([conv], flipped=FlippedKernels(conv) if in_advance else None):
        assert "forward" in conv.__dict__
        found = derivatives(conv, x, g)
    assert "forward" not in conv.__dict__
    assert_close(found, expected, **TIGHT)


@pytest.mark.parametrize("name", [*FLIPPED, *NOT_FLIPPED])
def test_which_kernels_can_be_flipped(name: str) -> None:
    conv = layer({**FLIPPED, **NOT_FLIPPED}[name])
    assert is_plain(conv)
    assert can_flip(conv) == (name in FLIPPED)
    assert list(FlippedKernels(conv).current(Side())) == ([conv] if name in FLIPPED else [])


@pytest.mark.parametrize("options", NOT_PLAIN.values(), ids=list(NOT_PLAIN))
def test_other_layers_are_left_alone(options: dict[str, Any]) -> None:
    conv = layer(options)
    others = [conv, nn.Linear(2, 2), nn.ConvTranspose2d(1, 1, 3), nn.Conv1d(1, 1, 3)]
    with fast_backward(others):
        assert not any("forward" in module.__dict__ for module in others)


@pytest.mark.parametrize("last", [False, True])
def test_a_flipped_kernel_is_the_transposed_convolution(last: bool) -> None:
    """The oracle without autograd: PyTorch's transposed convolution."""
    conv = layer(FLIPPED["wide padding"], last=last)
    (flipped,) = FlippedKernels(conv).current(Side()).values()
    g = numbers(2, 6, 5, 7)
    expected = functional.conv_transpose2d(g, conv.weight, padding=2)
    assert_close(functional.conv2d(g, flipped.kernel, padding=0), expected, **TIGHT)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("in_advance", [False, True])
def test_many_columns_at_once_are_one_after_another(last: bool, in_advance: bool) -> None:
    model = nn.Sequential(layer(FLIPPED["3x3"]), nn.Tanh(), nn.Conv2d(6, 2, 3, padding=2)).double()
    model = model.to(memory_format=torch.channels_last) if last else model
    x = numbers(3, 4, 5, 5).requires_grad_()
    with fast_backward(model, flipped=FlippedKernels(model) if in_advance else None):
        y = model(x)
    columns, plain = numbers(4, *y.shape), model(x)

    def pull_back(column: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, column, retain_graph=True)[0]

    with inputs_only():
        together = torch.func.vmap(pull_back)(columns)
        alone = torch.stack([pull_back(column) for column in columns])
    expected = torch.stack(
        [torch.autograd.grad(plain, x, column, retain_graph=True)[0] for column in columns]
    )
    assert_close(together, expected, **TIGHT)
    assert_close(alone, expected, **TIGHT)


def test_no_gradients_of_weights_while_pulling_back() -> None:
    conv, x = layer(FLIPPED["bias"]), numbers(2, 4, 5, 5).requires_grad_()
    with fast_backward([conv]):
        y = conv(x)
    points = [x, *conv.parameters()]
    assert not is_pulling_back()
    with inputs_only():
        assert is_pulling_back()
        grads = torch.autograd.grad(y.sum(), points, retain_graph=True, allow_unused=True)
    assert [grad is None for grad in grads] == [False, True, True]
    assert all(g is not None for g in torch.autograd.grad(y.sum(), points))


@pytest.mark.parametrize("options", [*FLIPPED.values(), *NOT_FLIPPED.values()], ids=str)
@pytest.mark.parametrize("in_advance", [False, True])
def test_under_autocast_gradients_are_those_of_pytorch(
    options: dict[str, Any], in_advance: bool
) -> None:
    """The backward pass may run outside of autocast."""
    conv, x = layer(options).float(), torch.randn(3, 4, 7, 8)
    found = []
    for flipped in (None, FlippedKernels(conv) if in_advance else FlippedKernels(nn.ReLU())):
        inputs = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            if flipped is None:
                y = conv(inputs)
            else:
                with fast_backward([conv], flipped=flipped):
                    y = conv(inputs)
        assert y.dtype == torch.bfloat16
        found.append(torch.autograd.grad(y.float().square().sum(), [inputs, *conv.parameters()]))
    assert_close(*found, rtol=0, atol=0)


def test_an_error_inside_leaves_nothing_behind() -> None:
    conv = layer(FLIPPED["3x3"])
    with pytest.raises(RuntimeError), fast_backward([conv]):
        conv(numbers(1, 3, 5, 5))
    assert "forward" not in conv.__dict__
    with pytest.raises(ZeroDivisionError), inputs_only():
        raise ZeroDivisionError
    assert not is_pulling_back()


def test_a_forward_pass_of_the_users_own_stays() -> None:
    conv = layer(FLIPPED["3x3"])
    conv.forward = lambda x: 2 * x
    own = conv.forward
    with fast_backward([conv]):
        assert conv.forward is own
    assert conv.forward is own


def test_a_weight_that_has_changed_is_not_the_one_that_was_flipped() -> None:
    model = nn.Sequential(layer(FLIPPED["bias"]))

    def pulled_back(weights: dict[str, Tensor]) -> Tensor:
        x = torch.ones(2, 4, 6, 6, dtype=torch.float64).requires_grad_()
        y = torch.func.functional_call(model, weights, x)
        return torch.autograd.grad(y.square().sum(), x)[0]

    own, other = dict(model.named_parameters()), {"0.weight": -model[0].weight.detach()}
    with fast_backward(model, flipped=FlippedKernels(model)):
        found = [pulled_back(own), pulled_back(other)]
        with torch.no_grad():
            model[0].weight.mul_(2)
        found.append(pulled_back(own))
    twice = pulled_back(own)
    with torch.no_grad():
        model[0].weight.div_(2)
    assert_close(found, [pulled_back(own), pulled_back(other), twice], **TIGHT)


# --- a whole backward pass ----------------------------------------------------------------------


def make_model() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=True),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 6, 3, stride=2, groups=2, dilation=2, bias=False),
            nn.Conv2d(6, 4, 2, padding="same"),  # left to autograd
            nn.Conv2d(4, 4, (3, 2), padding=(1, 0), bias=False),  # flipped, and not square
            nn.Flatten(),
            nn.Linear(24, 3),
        ).double()


def once(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


def twice(model: nn.Module, x: Tensor) -> Tensor:
    return model(x[:3]).square().sum() + model(x[3:]).sin().sum()


Loss = Callable[[nn.Module, Tensor], Tensor]
IGNORE_PADDING = pytest.mark.filterwarnings("ignore:Using padding='same'")


@contextmanager
def collected(model: nn.Module) -> Iterator[WeightGradients]:
    """A forward pass as :class:`Backward` makes it on a GPU, here on the CPU."""
    weights = WeightGradients(model)
    with fast_backward(model.modules(), flipped=FlippedKernels(model), weights=weights):
        yield weights


def backward(weights: WeightGradients, loss: Tensor) -> None:
    weights.begin()
    try:
        loss.backward()
    finally:
        weights.end()


@IGNORE_PADDING
@pytest.mark.parametrize("loss", [once, twice])
@pytest.mark.parametrize("frozen", [None, "0.weight", "0.bias", "3.weight"])
@pytest.mark.parametrize("before", [False, True])
def test_gradients_are_those_of_autograd(loss: Loss, frozen: str | None, before: bool) -> None:
    """Gradients that were there are added to."""
    ours, theirs = make_model(), make_model()
    for model in (ours, theirs):
        if frozen is not None:
            model.get_parameter(frozen).requires_grad_(False)
        for parameter in model.parameters():
            if before and parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
    x = numbers(5, 2, 10, 10)
    with collected(ours) as weights:
        value = loss(ours, x)
    backward(weights, value)
    assert not weights.collecting
    loss(theirs, x).backward()
    for name, parameter in theirs.named_parameters():
        assert_close(ours.get_parameter(name).grad, parameter.grad, msg=name)
    assert not any("forward" in module.__dict__ for module in ours.modules())


@IGNORE_PADDING
def test_other_backward_passes_get_all_gradients() -> None:
    ours, theirs = make_model(), make_model()
    x = numbers(5, 2, 10, 10)
    with collected(ours):
        value = once(ours, x)
    found = torch.autograd.grad(value, list(ours.parameters()))
    assert_close(found, torch.autograd.grad(once(theirs, x), list(theirs.parameters())))
    assert all(p.grad is None for p in ours.parameters())


@IGNORE_PADDING
def test_on_a_cpu_the_backward_pass_is_pytorchs() -> None:
    ours, theirs = make_model(), make_model()
    x, run = numbers(5, 2, 10, 10), Backward(ours)
    with run.forward():
        assert not any("forward" in module.__dict__ for module in ours.modules())
        value = once(ours, x)
    run(value)
    once(theirs, x).backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(one.grad, other.grad, rtol=0, atol=0)


@on_gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize("last", [False, True])
def test_on_a_gpu_gradients_are_those_of_autograd(last: bool) -> None:
    def make() -> nn.Sequential:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            convs = [nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((3, 8), (8, 8), (8, 4))]
            model = nn.Sequential(*convs, nn.Flatten(), nn.Linear(4 * 64, 3)).cuda()
        return model.to(memory_format=torch.channels_last) if last else model

    ours, theirs, x = make(), make().double(), torch.randn(4, 3, 8, 8)
    run = Backward(ours)
    with run.forward():
        value = once(ours, x.cuda())
    run(value)
    once(theirs, x.cuda().double()).backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None
        assert one.grad.stride() == one.stride()
        assert (one.grad - other.grad).norm() < 5e-3 * other.grad.norm()


# --- which layers share a kernel ----------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[list[nn.Conv2d]]:
    """The layers of each launch, as if there were kernels for all of them."""
    found: list[list[nn.Conv2d]] = []
    plain = operation.implementations["plain"]

    def make(convs: list[nn.Conv2d], layers: list[Any]) -> list[Tensor]:
        found.append(list(convs))
        return plain(convs, layers)

    kernels = module("weight_gradients")
    monkeypatch.setattr(kernels, "weight_gradients", make)
    monkeypatch.setattr(kernels, "_fits_kernel", lambda conv, x, g: conv.bias is None)
    return found


def deep(layers: int, *, bias: tuple[int, ...] = ()) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(2, 2, 3, padding=1, bias=index in bias) for index in range(layers))
    ).double()


def step(model: nn.Sequential, x: Tensor) -> None:
    with collected(model) as weights:
        value = once(model, x)
    backward(weights, value)


@pytest.mark.parametrize(
    ("layers", "bias", "groups"),
    [
        (3, (), [[2, 1], [0]]),  # nothing is left to run in parallel with the first layer
        (8, (), [[7, 6, 5, 4, 3], [2, 1], [0]]),
        (1, (), [[0]]),
        (4, (2,), [[3, 1], [0]]),  # a layer with a bias is made by itself
    ],
)
def test_consecutive_layers_share_a_launch(
    layers: int, bias: tuple[int, ...], groups: list[list[int]], launches: list[list[nn.Conv2d]]
) -> None:
    model, x = deep(layers, bias=bias), numbers(2, 2, 8, 8)
    step(model, x)
    numbered = dict(zip(model, count(), strict=False))
    assert [[numbered[conv] for conv in launch] for launch in launches] == groups
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    once(model, x).backward()
    assert_close(found, [parameter.grad for parameter in model.parameters()])


def test_images_of_other_sizes_and_layouts_do_not_share_a_launch(
    launches: list[list[nn.Conv2d]],
) -> None:
    first, second, third = convs = [nn.Conv2d(2, 2, 3, padding=1, bias=False) for _ in range(3)]
    weights = WeightGradients(nn.Sequential(nn.Conv2d(1, 1, 1), *convs))
    weights.begin()
    x, large = torch.randn(2, 2, 8, 8), torch.randn(2, 2, 4, 16)
    last = x.contiguous(memory_format=torch.channels_last)

    def alone() -> Any:
        raise AssertionError("The library was asked.")

    for conv, images in ((first, x), (second, large), (third, last), (first, last), (first, last)):
        weights.add(conv, images, torch.randn(images.shape), alone)
    weights.end()
    # A layer that is called twice does not share a launch with itself.
    assert launches == [[first], [second], [third, first], [first]]


def test_a_backward_pass_that_fails_leaves_nothing_waiting(
    launches: list[list[nn.Conv2d]],
) -> None:
    model, x = deep(3), numbers(2, 2, 8, 8)
    with collected(model) as weights:
        value = once(model, x)
    weights.begin()
    weights.add(model[2], x, x, lambda: None)
    weights.end()
    launches.clear()
    backward(weights, value)
    assert sum(len(launch) for launch in launches) == 3


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 4, 3, bias=True),
        nn.Conv2d(4, 4, 3, groups=2, bias=False),
        nn.Conv2d(4, 4, 3, dilation=2, bias=False),
        nn.Conv2d(4, 4, (1, 3), bias=False),
        nn.Conv2d(4, 4, 5, padding=2, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, bias=False).requires_grad_(False),
    ],
    ids=repr,
)
@on_gpu
def test_layers_without_a_kernel(conv: nn.Conv2d) -> None:
    conv, x = conv.cuda(), torch.randn(2, 4, 8, 8).cuda()
    assert not _fits_kernel(conv, x, conv(x))


@on_gpu
def test_images_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x = nn.Conv2d(4, 4, 3, padding=1, bias=False).cuda(), torch.randn(2, 4, 8, 8).cuda()
    g = torch.randn_like(x)
    assert _fits_kernel(conv, x, g)
    assert not _fits_kernel(conv, x.double(), g.double())
    assert not _fits_kernel(conv, x.transpose(0, 2), g.transpose(0, 2))
    odd = torch.randn(2, 4, 10, 10).cuda()  # rows that do not fill a block
    assert not _fits_kernel(conv, odd, torch.randn_like(odd))
    with monkeypatch.context() as context:
        context.setattr(module("weight_gradients"), "_LARGEST", 4 * 4 * 9 * 2 * 64 - 1)
        assert not _fits_kernel(conv, x, g)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not _fits_kernel(conv, x, g)
