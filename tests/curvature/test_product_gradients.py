"""Gradients of linear layers as products of few rows give the same step."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.accel import RowRecorder
from ocar.curvature import KFAC
from ocar.curvature.kfac import KroneckerBlocks

EXACT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-12}


def make_model(*, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(30, 20, bias=bias), nn.ReLU(inplace=True), nn.Linear(20, 16), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(16, 4)).double()


def inputs(samples: int, seed: int) -> Tensor:
    x = torch.randn(samples, 30, generator=torch.Generator().manual_seed(seed)).double()
    x[:, 25:] = 0  # never used: the CPU leaves such inputs out of the factorization
    return x


def plain(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


def two_passes(model: nn.Module, x: Tensor) -> Tensor:
    return model(x[:3]).square().sum() + model(x[3:]).sin().sum()


def with_penalty(model: nn.Module, x: Tensor) -> Tensor:
    weights = torch.cat([p.flatten() for p in model.parameters()])
    return plain(model, x) + weights.square().sum()


def with_penalty_on_biases(model: nn.Module, x: Tensor) -> Tensor:
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    return plain(model, x) + 1e-3 * torch.cat(biases).square().sum()


def with_another_backward(model: nn.Module, x: Tensor) -> Tensor:
    value = plain(model, x)
    trained = [p for p in model.parameters() if p.requires_grad]
    torch.autograd.grad(model(x).sum(), trained)
    torch.autograd.grad(value, trained, retain_graph=True)
    return value


def step(
    model: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor], x: Tensor, *, follow: bool
) -> KFAC:
    kfac = KFAC(model, damping=1e-2, ema=0.5, fisher="exact")
    with kfac.record():
        outputs = model(inputs(8, 1))
    kfac.update(outputs)
    if follow:
        with kfac.follow():
            value = loss(model, x)
    else:
        value = loss(model, x)
    value.backward()
    return kfac


def rows_of(kfac: KFAC) -> RowRecorder:
    (block,) = kfac.blocks
    assert isinstance(block, KroneckerBlocks)
    return block.rows


@pytest.mark.parametrize(
    "loss", [plain, two_passes, with_penalty, with_penalty_on_biases, with_another_backward]
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [None, "0.bias", "2.bias"])
@pytest.mark.parametrize("samples", [6, 40])
def test_the_step_is_the_same(
    loss: Callable[[nn.Module, Tensor], Tensor], bias: bool, frozen: str | None, samples: int
) -> None:
    ours, theirs = make_model(bias=bias), make_model(bias=bias)
    for model in (ours, theirs):
        if frozen is not None and frozen in dict(model.named_parameters()):
            model.get_parameter(frozen).requires_grad_(False)
    x = inputs(samples, 2)
    for model, follow in ((ours, True), (theirs, False)):
        step(model, loss, x, follow=follow).precondition_()
    for name, parameter in theirs.named_parameters():
        assert_close(ours.get_parameter(name).grad, parameter.grad, **EXACT, msg=name)


@pytest.mark.parametrize(
    ("loss", "samples", "known"),
    [
        (plain, 6, True),
        (two_passes, 6, True),
        (plain, 40, False),  # more rows than outputs
        (with_penalty, 6, False),  # a part of the gradient that is no product
        (with_penalty_on_biases, 6, False),
    ],
)
def test_rows_are_used_where_they_are_the_gradient(
    loss: Callable[[nn.Module, Tensor], Tensor], samples: int, known: bool
) -> None:
    model = make_model()
    kfac = step(model, loss, inputs(samples, 2), follow=True)
    rows = rows_of(kfac).rows("0")
    assert (rows is not None) == known
    if rows is not None:
        x, g = rows
        assert_close((g.mT @ x)[:, :30], model.get_parameter("0.weight").grad)


def test_locations_count_as_rows() -> None:
    ours, theirs = make_model(), make_model()
    x = inputs(6, 2).view(2, 3, 30)
    for model, follow in ((ours, True), (theirs, False)):
        step(model, plain, x, follow=follow).precondition_()
    for name, parameter in theirs.named_parameters():
        assert_close(ours.get_parameter(name).grad, parameter.grad, **EXACT, msg=name)


def test_the_columns_of_the_fisher_are_not_taken_for_gradients() -> None:
    model = make_model()
    other = copy.deepcopy(model)
    x = inputs(6, 2)
    for each, follow in ((model, True), (other, False)):
        kfac = KFAC(each, damping=1e-2, ema=0.5, fisher="exact")
        if follow:
            with kfac.follow(), kfac.record():
                outputs = each(x)
        else:
            with kfac.record():
                outputs = each(x)
        kfac.update(outputs)
        outputs.square().sum().backward()
        assert (rows_of(kfac).rows("0") is not None) == follow
        kfac.precondition_()
    for name, parameter in other.named_parameters():
        assert_close(model.get_parameter(name).grad, parameter.grad, **EXACT, msg=name)


def test_no_hook_stays() -> None:
    model = make_model()
    kfac = KFAC(model, damping=1e-2, ema=0.5)
    with kfac.follow():
        assert model[0]._forward_hooks
    assert not model[0]._forward_hooks
