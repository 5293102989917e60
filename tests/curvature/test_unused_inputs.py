"""Inputs that were never anything but 0 are left out of A, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from ocar.curvature import KFAC
from ocar.curvature.blocks import KroneckerBlock
from ocar.errors import NumericalError

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
INPUTS = 20


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of these tests are wide enough."""
    monkeypatch.setattr("ocar.curvature.blocks.WIDE", 16)


def make(*, leave_out: bool, bias: bool = True, **options: Any) -> KFAC:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, 6, bias=bias), nn.ReLU(), nn.Linear(6, 4)).double()
    kfac = KFAC(model, **{"damping": 0.01, "ema": 0.3, "fisher": "exact", **options})
    if not leave_out:
        for block in kfac.blocks.values():
            block.__class__ = Whole
    return kfac


class Whole(KroneckerBlock):
    """A block that leaves nothing out."""

    @property
    def _may_leave_out(self) -> bool:
        return False


def batch(seed: int, *inputs: int) -> Tensor:
    """Samples in which some inputs alone are not 0."""
    x = torch.zeros(8, INPUTS, dtype=torch.float64)
    noise = torch.randn(8, len(inputs), generator=torch.Generator().manual_seed(seed))
    x[:, list(inputs)] = noise.double()
    return x


def step(kfac: KFAC, x: Tensor) -> list[Tensor]:
    """One step; the preconditioned gradients."""
    with kfac.capture(), kfac.follow():
        outputs = kfac.model(x)
    kfac.update(outputs)
    kfac.model.zero_grad()
    functional.cross_entropy(outputs, torch.arange(8) % 4).backward()
    kfac.precondition_()
    return [p.grad.clone() for p in kfac.model.parameters() if p.grad is not None]


def first(kfac: KFAC) -> KroneckerBlock:
    block = kfac.blocks["0"]
    assert isinstance(block, KroneckerBlock)
    return block


def used(kfac: KFAC) -> list[int]:
    """The inputs that A is of."""
    found = first(kfac).used
    assert found is not None
    return found.tolist()


STREAM = [(3, 4, 9), (3, 4), (1, 4, 9, 12), (0, 19), (5, 6, 7, 8)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{}, {"weighting": "both"}, {"damping_kind": "exact"}], ids=str)
def test_steps_eigenvalues_and_checkpoints_are_the_same(
    bias: bool, options: dict[str, Any]
) -> None:
    ours, theirs = (make(leave_out=out, bias=bias, **options) for out in (True, False))
    for seed, inputs in enumerate(STREAM):
        x = batch(seed, *inputs)
        assert_close(step(ours, x), step(theirs, x), **EXACT)
    assert_close(ours.eigenvalues(), theirs.eigenvalues(), **EXACT)
    states = ours.state_dict(), theirs.state_dict()
    assert_close(*({k: v for k, v in s.items() if k != "generator"} for s in states), **EXACT)


def test_a_is_of_what_was_used_and_grows() -> None:
    kfac = make(leave_out=True, ema=0.3)
    found = []
    for seed, inputs in enumerate(STREAM):
        step(kfac, batch(seed, *inputs))
        found.append(used(kfac))
        assert first(kfac).averages["A"].shape == (1, len(found[-1]), len(found[-1]))
    ones = INPUTS  # of the bias
    assert found[0] == found[1] == [3, 4, 9, ones]
    assert found[2] == [1, 3, 4, 9, 12, ones]
    assert found[3] == [0, 1, 3, 4, 9, 12, 19, ones]
    step(kfac, batch(9, *range(INPUTS - 1)))
    assert first(kfac).used is None  # too few are left out
    assert first(kfac).averages["A"].shape == (1, INPUTS + 1, INPUTS + 1)


def test_a_checkpoint_goes_on_to_the_bit() -> None:
    ours = make(leave_out=True)
    for seed in (0, 1, 2):
        step(ours, batch(seed, *STREAM[seed]))
    other = make(leave_out=True)
    other.model.load_state_dict(ours.model.state_dict())
    other.load_state_dict(ours.state_dict())
    assert used(other) == used(ours)
    for seed in (3, 4):
        x = batch(seed, *STREAM[seed])
        assert all(map(torch.equal, step(ours, x), step(other, x)))


def test_what_has_faded_to_nothing_is_left_out_again() -> None:
    kfac = make(leave_out=True, ema=1.0)
    for seed, inputs in enumerate(((1, 2, 3), (5, 6))):
        step(kfac, batch(seed, *inputs))
    assert used(kfac) == [5, 6, INPUTS]


def test_a_batch_that_is_not_finite_leaves_the_average() -> None:
    kfac = make(leave_out=True)
    step(kfac, batch(0, 3, 4))
    before = first(kfac).whole_a.clone()
    x = batch(1, 3, 7)
    x[0, 7] = torch.nan
    with pytest.raises(NumericalError):
        step(kfac, x)
    assert torch.equal(first(kfac).whole_a, before)
    ours, theirs = kfac, make(leave_out=False)
    step(theirs, batch(0, 3, 4))
    assert_close(step(ours, batch(2, 1, 3)), step(theirs, batch(2, 1, 3)), **EXACT)
