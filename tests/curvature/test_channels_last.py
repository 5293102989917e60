"""Kernels that are channels last: the same curvature, gradients and checkpoints."""

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

from ocar.accel.layout import is_channels_last
from ocar.curvature import EKFAC, FOOF, KFAC, LayerCurvature

KINDS = {
    "factored": (KFAC, {}),
    "exact": (KFAC, {"damping_kind": "exact"}),
    "ekfac": (EKFAC, {"basis_every": 2}),
    "foof": (FOOF, {}),
}
SAMPLES = 24
"""More than a layer has inputs, so that E-KFAC's eigenbasis is unique."""
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def both(
    model: nn.Module, kind: str = "factored", **options: object
) -> tuple[LayerCurvature, LayerCurvature]:
    """Curvatures of a model and of a copy whose kernels are channels last."""
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)
    make, own = KINDS[kind]
    options = {"damping": 0.01, "ema": 0.3, "fisher": "exact", **own, **options}
    return make(model, **options), make(other, **options)


def gradients(kfac: LayerCurvature, *, seed: int) -> list[Tensor]:
    """Random gradients in the layout of the parameters, preconditioned."""
    set_gradients(kfac.model, seed=seed)
    for parameter in kfac.model.parameters():
        laid = torch.empty_like(parameter)
        parameter.grad = laid.copy_(parameter.grad)
    kfac.precondition_()
    return [parameter.grad.clone() for parameter in kfac.model.parameters()]


def assert_same(one: LayerCurvature, two: LayerCurvature, x: Tensor, *, seed: int) -> None:
    for kfac, images in ((one, x), (two, x.contiguous(memory_format=torch.channels_last))):
        observe(kfac, images)
    # Eigenvectors may have another sign or order.
    compared = ({k: v for k, v in c.state_dict().items() if "U" not in k and ".S" not in k}
                for c in (two, one))  # fmt: skip
    assert_close(*compared, **EXACT)
    assert_close(gradients(two, seed=seed), gradients(one, seed=seed), **EXACT)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=convolutions(), sharing=st.sampled_from(["expand", "reduce"]))
def test_any_convolution(case, sharing):
    conv, x = case
    assume(isinstance(conv, nn.Conv2d))
    one, two = both(conv_net(conv, x), sharing=sharing)
    assert_same(one, two, x, seed=0)


@EVERY_KIND
def test_a_network(kind):
    one, two = both(batch_norm_net(), kind)
    assert any(is_channels_last(p) for p in two.model.parameters())
    for step in range(4):
        assert_same(one, two, torch.randn(SAMPLES, 2, 5, 5), seed=step)


@EVERY_KIND
def test_a_checkpoint_of_one_goes_on_in_the_other(kind):
    one, two = both(batch_norm_net(), kind)
    for _ in range(3):
        observe(one, torch.randn(SAMPLES, 2, 5, 5))
    two.model.load_state_dict(one.model.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    # A basis is held minus the identity, whose ones meet other entries in the other order.
    rounding = EXACT if kind == "ekfac" else {"rtol": 0, "atol": 0}
    assert_close(two.state_dict(), one.state_dict(), **rounding)
    assert_close(gradients(two, seed=1), gradients(one, seed=1), **EXACT)
    assert_same(one, two, torch.randn(SAMPLES, 2, 5, 5), seed=2)
    back, _ = both(batch_norm_net(), kind)
    back.model.load_state_dict(two.model.state_dict())
    back.load_state_dict(copy.deepcopy(two.state_dict()))
    assert_close(gradients(back, seed=3), gradients(two, seed=3), **EXACT)
