"""Single precision and autocast, against double and single precision."""

from __future__ import annotations

import pytest
import reference
import torch
from checks import average, averages, layer_gradient
from nets import batch_norm_net, observe, set_gradients
from tolerances import BFLOAT16, SINGLE
from torch import Tensor, nn
from torch.testing import assert_close

from ocar.curvature import EKFAC, FOOF, KFAC


@pytest.mark.parametrize("kind", ["factored", "exact"])
def test_single_precision_is_close_to_double(kind):
    rewritten = []
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        model, x = batch_norm_net(), torch.randn(4, 2, 5, 5)
        model, x = model.to(dtype), x.to(dtype)
        kfac = KFAC(model, damping=0.01, ema=1.0, fisher="exact", damping_kind=kind)
        observe(kfac, x)
        set_gradients(model)
        kfac.precondition_()
        rewritten.append([p.grad for p in model.parameters()])
        for block in kfac.blocks:
            assert block.buffer.averages.dtype == block.buffer.estimates.dtype == dtype
    for double, single in zip(*rewritten, strict=True):
        assert single.dtype == torch.float32
        # A single entry may be much smaller than the terms that it is a sum of.
        assert torch.linalg.norm(single - double) < SINGLE["rtol"] * torch.linalg.norm(double)


@pytest.mark.parametrize("inside", ["forward", "all"])
def test_autocast_keeps_factors_in_single_precision(inside):
    """Whether the update and the inverse are inside of autocast too, or only the forward pass."""
    factors = []
    for enabled in (False, True):
        torch.manual_seed(0)
        model, x = batch_norm_net().float(), torch.randn(8, 2, 5, 5).float()
        kfac = KFAC(model, damping=0.01, ema=1.0, fisher="exact")
        everything = torch.autocast("cpu", torch.bfloat16, enabled=enabled and inside == "all")
        with everything:
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled), kfac.record():
                outputs = model(x)
            assert outputs.dtype == (torch.bfloat16 if enabled else torch.float32)
            kfac.update(outputs)
            set_gradients(model)
            kfac.precondition_()
        factors.append(list(averages(kfac).values()))
    results = {name: layer_gradient(model.get_submodule(name)).double() for name in kfac.layers}
    set_gradients(model.double())
    for name in kfac.layers:
        own = tuple(average(kfac, name, key).double() for key in ("A", "G"))
        expected = reference.preconditioned(model.get_submodule(name), own, 0.01)
        error = torch.linalg.norm(results[name] - expected) / torch.linalg.norm(expected)
        assert float(error) < SINGLE["rtol"]
    errors = [
        torch.linalg.norm(half - plain) / torch.linalg.norm(plain)
        for plain, half in zip(*factors, strict=True)
    ]
    assert {half.dtype for half in factors[1]} == {torch.float32}
    assert 0 < float(max(errors)) < BFLOAT16


class Residual(nn.Module):
    """Adds to the input of a layer, in place or not: autocast has multiplied a rounded copy."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.body, self.head, self.in_place = nn.Linear(5, 5), nn.Linear(5, 3), in_place

    def forward(self, x: Tensor) -> Tensor:
        hidden = x + 1
        added = torch.tanh(self.body(hidden))
        hidden = hidden.add_(added) if self.in_place else hidden + added
        return self.head(hidden)


def test_an_input_that_changes_in_place_is_recorded_as_autocast_multiplied_it():
    found, x = [], torch.randn(8, 5).float()
    for in_place in (False, True):
        torch.manual_seed(0)
        kfac = KFAC(Residual(in_place=in_place).float(), damping=0.01, ema=1.0, fisher="exact")
        with torch.autocast("cpu", torch.bfloat16):
            observe(kfac, x)
        found.append(averages(kfac))
    rows = nn.functional.pad((x + 1).bfloat16().float(), (0, 1), value=1.0)
    assert_close(found[0]["body.A"][0], rows.T @ rows / 8, **SINGLE)
    for name, expected in found[0].items():
        assert torch.equal(found[1][name], expected)


class Mixed(nn.Module):
    """A body in single precision and a head in double."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, groups=2).float()
        self.body = nn.Linear(12, 4).float()
        self.head = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.conv(x).flatten(1))).double())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", [KFAC, EKFAC, FOOF])
def test_layers_may_have_several_types(kind, threads):
    """The factors are in the widest of them."""
    before, rewritten = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        for dtype in (None, torch.float64):
            torch.manual_seed(0)
            model, x = Mixed().to(dtype), torch.randn(4, 4, 5).to(dtype or torch.float32)
            curvature = kind(model, damping=0.01, ema=1.0, fisher="exact")
            for _ in range(2):
                observe(curvature, x)
            assert averages(curvature)["body.A"].dtype == torch.float64
            set_gradients(model)
            curvature.precondition_()
            rewritten.append([p.grad for p in model.parameters()])
    finally:
        torch.set_num_threads(before)
    for mixed, double in zip(*rewritten, strict=True):
        assert_close(mixed.double(), double, **SINGLE)
