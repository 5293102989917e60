"""Single precision and autocast, against double and single precision."""

from __future__ import annotations

import pytest
import reference
import torch
from checks import layer_gradient
from nets import batch_norm_net, observe, set_gradients
from tolerances import BFLOAT16, SINGLE
from torch.testing import assert_close

from ocar.curvature import KFAC


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
        for block in kfac.blocks.values():
            assert {t.dtype for t in block.tensors()} == {dtype}
    for double, single in zip(*rewritten, strict=True):
        assert single.dtype == torch.float32
        assert_close(single.double(), double, **SINGLE)


@pytest.mark.parametrize("inside", ["forward", "all"])
def test_autocast_keeps_factors_in_single_precision(inside):
    """Whether the update and the inverse are inside of autocast too, or the forward alone."""
    factors = []
    for enabled in (False, True):
        torch.manual_seed(0)
        model, x = batch_norm_net().float(), torch.randn(8, 2, 5, 5).float()
        kfac = KFAC(model, damping=0.01, ema=1.0, fisher="exact")
        everything = torch.autocast("cpu", torch.bfloat16, enabled=enabled and inside == "all")
        with everything:
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled), kfac.capture():
                outputs = model(x)
            assert outputs.dtype == (torch.bfloat16 if enabled else torch.float32)
            kfac.update(outputs)
            set_gradients(model)
            kfac.precondition_()
        factors.append([t for b in kfac.blocks.values() for t in b.averages.values()])
    results = {name: layer_gradient(model.get_submodule(name)).double() for name in kfac.blocks}
    set_gradients(model.double())
    for name, block in kfac.blocks.items():
        own = tuple(block.averages[key].double() for key in ("A", "G"))
        expected = reference.preconditioned(model.get_submodule(name), own, 0.01)
        error = torch.linalg.norm(results[name] - expected) / torch.linalg.norm(expected)
        assert float(error) < SINGLE["rtol"]
    errors = [
        torch.linalg.norm(half - plain) / torch.linalg.norm(plain)
        for plain, half in zip(*factors, strict=True)
    ]
    assert {half.dtype for half in factors[1]} == {torch.float32}
    assert 0 < float(max(errors)) < BFLOAT16
