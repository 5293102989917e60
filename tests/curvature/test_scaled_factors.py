"""A·√K and G/√K in the moving average, and the size of the head by its labels, by hand."""

from __future__ import annotations

import pytest
import reference
import torch
from nets import mlp, observe, set_gradients
from tolerances import EXACT
from torch import Tensor
from torch.testing import assert_close

from ocar.curvature import KFAC
from ocar.errors import ConfigError

CAPACITY, RATE, TAU = 8, 0.3, 0.01

SCHEDULE = [(2, 2), (2, 2), (3, 4), (4, 4), (4, 4), (5, 7)]
"""Classes seen, and the largest label + 1, in each batch."""


def by_hand(batches: list[Tensor], *, scaled: bool, by_labels: bool) -> list[dict[str, Tensor]]:
    """What every layer's random gradient becomes in each batch."""
    torch.manual_seed(0)
    model = mlp((5, 4, CAPACITY))
    averages: dict[str, tuple[Tensor, Tensor]] = {}
    before, steps = 0, []
    for x, (seen, largest) in zip(batches, SCHEDULE, strict=True):
        size = largest if by_labels else seen
        mask = torch.arange(CAPACITY) < seen
        fresh = reference.kronecker_factors(model, x, ["0", "2"], active=mask)
        root = size**0.5 if scaled else 1.0
        set_gradients(model)
        steps.append({})
        for name, (new_a, new_g) in fresh.items():
            new_a, new_g = new_a * root, new_g / root
            if name in averages:
                a, g = averages[name]
                restarts = name == "2" and size != before
                new_a = (1 - RATE) * a + RATE * new_a
                new_g = new_g if restarts else (1 - RATE) * g + RATE * new_g
            averages[name] = new_a, new_g
            dim = size if name == "2" else None
            layer = model.get_submodule(name)
            steps[-1][name] = reference.preconditioned(layer, averages[name], TAU, g_dim=dim)
        before = size
    return steps


def by_kfac(batches: list[Tensor], *, scale: str, by_labels: bool) -> list[dict[str, Tensor]]:
    torch.manual_seed(0)
    model = mlp((5, 4, CAPACITY))
    kfac = KFAC(model, damping=TAU, ema=RATE, fisher="exact", factor_scale=scale)
    steps = []
    for x, (seen, largest) in zip(batches, SCHEDULE, strict=True):
        kfac.units = torch.tensor(float(largest)) if by_labels else None
        observe(kfac, x, active=torch.arange(CAPACITY) < seen)
        set_gradients(model)
        kfac.precondition_()
        layers = {name: model.get_submodule(name) for name in ("0", "2")}
        steps.append(
            {
                name: reference.as_matrix(layer, layer.weight.grad, layer.bias.grad)
                for name, layer in layers.items()
            }
        )
    return steps


@pytest.mark.parametrize("by_labels", [False, True])
@pytest.mark.parametrize("scale", ["none", "outputs"])
def test_the_steps_are_those_by_hand(scale: str, by_labels: bool) -> None:
    batches = [torch.randn(6, 5) for _ in SCHEDULE]
    found = by_kfac(batches, scale=scale, by_labels=by_labels)
    expected = by_hand(batches, scaled=scale == "outputs", by_labels=by_labels)
    for own, wanted in zip(found, expected, strict=True):
        for name in ("0", "2"):
            assert_close(own[name], wanted[name], **EXACT)


def test_the_scale_cancels_until_the_head_grows() -> None:
    batches = [torch.randn(6, 5) for _ in SCHEDULE]
    plain, scaled = (by_kfac(batches, scale=s, by_labels=False) for s in ("none", "outputs"))
    ratios = [
        float((one["0"] - other["0"]).norm() / one["0"].norm())
        for one, other in zip(plain, scaled, strict=True)
    ]
    assert max(ratios[:2]) < 1e-12
    assert min(ratios[2:]) > 1e-3


def test_a_wrong_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="Invalid factor_scale='sqrt'"):
        KFAC(mlp(), factor_scale="sqrt")
