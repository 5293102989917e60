"""Kernels that lie pixel by pixel: the same curvature, gradients and checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nets import batch_norm_net, conv_net, observe, set_gradients
from strategies import convolutions
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.accel.layout import lies_by_pixel
from ocar.curvature import KFAC


def both(model: nn.Module, **options: object) -> tuple[KFAC, KFAC]:
    """Curvatures of a model and of a copy whose kernels lie pixel by pixel."""
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)
    one, two = (KFAC(m, damping=0.01, ema=0.3, fisher="exact", **options) for m in (model, other))
    return one, two


def gradients(kfac: KFAC, *, seed: int) -> list[Tensor]:
    """Random gradients as rewritten, laid like the parameters."""
    set_gradients(kfac.model, seed=seed)
    for parameter in kfac.model.parameters():
        laid = torch.empty_like(parameter)
        parameter.grad = laid.copy_(parameter.grad)
    kfac.precondition_()
    return [parameter.grad.clone() for parameter in kfac.model.parameters()]


def assert_same(one: KFAC, two: KFAC, x: Tensor, *, seed: int) -> None:
    for kfac, images in ((one, x), (two, x.contiguous(memory_format=torch.channels_last))):
        observe(kfac, images)
    assert_close(two.state_dict(), one.state_dict(), **EXACT)
    assert_close(gradients(two, seed=seed), gradients(one, seed=seed), **EXACT)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=convolutions(), sharing=st.sampled_from(["expand", "reduce"]))
def test_any_convolution(case, sharing):
    conv, x = case
    assume(isinstance(conv, nn.Conv2d))
    one, two = both(conv_net(conv, x), sharing=sharing)
    assert_same(one, two, x, seed=0)


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_a_network(kind):
    one, two = both(batch_norm_net(), damping_kind=kind)
    assert any(lies_by_pixel(p) for p in two.model.parameters())
    for step in range(3):
        assert_same(one, two, torch.randn(4, 2, 5, 5), seed=step)


def test_a_checkpoint_of_one_goes_on_in_the_other():
    one, two = both(batch_norm_net())
    observe(one, torch.randn(4, 2, 5, 5))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    assert_close(two.state_dict(), one.state_dict(), rtol=0, atol=0)
    assert_close(gradients(two, seed=1), gradients(one, seed=1), **EXACT)
    assert_same(one, two, torch.randn(4, 2, 5, 5), seed=2)
    back, _ = both(batch_norm_net())
    back.model.load_state_dict(two.model.state_dict())
    back.load_state_dict(copy.deepcopy(two.state_dict()))
    assert_close(gradients(back, seed=3), gradients(two, seed=3), **EXACT)
