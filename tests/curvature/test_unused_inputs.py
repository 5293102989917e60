"""Inputs of a wide linear layer that were always zero are left out, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import average, block_of
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from ocar.accel import kronecker_host
from ocar.curvature import KFAC
from ocar.errors import NumericalError

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
INPUTS = 20


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of these tests are wide enough."""
    monkeypatch.setattr(kronecker_host, "_WIDE", 16)


def make(*, bias: bool = True, **options: Any) -> KFAC:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, 6, bias=bias), nn.ReLU(), nn.Linear(6, 4)).double()
    return KFAC(model, **{"damping": 0.01, "ema": 0.3, "fisher": "exact", **options})


def batch(seed: int, *inputs: int) -> Tensor:
    """Samples in which only some inputs are nonzero."""
    x = torch.zeros(8, INPUTS, dtype=torch.float64)
    noise = torch.randn(8, len(inputs), generator=torch.Generator().manual_seed(seed))
    x[:, list(inputs)] = noise.double()
    return x


def step(kfac: KFAC, x: Tensor) -> list[Tensor]:
    """One step; the preconditioned gradients."""
    with kfac.record(), kfac.follow():
        outputs = kfac.model(x)
    kfac.update(outputs)
    kfac.model.zero_grad()
    functional.cross_entropy(outputs, torch.arange(8) % 4).backward()
    kfac.precondition_()
    return [p.grad.clone() for p in kfac.model.parameters() if p.grad is not None]


def used(kfac: KFAC) -> list[int] | None:
    """The inputs that the factor of A is of; None for all."""
    found = block_of(kfac, "0").buffer.derived["factored"]["0"].used
    return None if found is None else found.tolist()


STREAM = [(3, 4, 9), (3, 4), (1, 4, 9, 12), (0, 19), (5, 6, 7, 8)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{}, {"weighting": "both"}], ids=str)
def test_steps_eigenvalues_and_checkpoints_are_the_same(
    bias: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    for wide in (16, 10**9):
        monkeypatch.setattr(kronecker_host, "_WIDE", wide)
        kfac = make(bias=bias, **options)
        steps = [step(kfac, batch(seed, *inputs)) for seed, inputs in enumerate(STREAM)]
        assert (used(kfac) is None) == (wide > INPUTS)
        results.append((steps, kfac.eigenvalues(), kfac.state_dict()))
    assert_close(*results, **EXACT)


def test_inputs_are_added_when_they_first_become_nonzero() -> None:
    kfac, found = make(ema=0.3), []
    for seed, inputs in enumerate(STREAM):
        step(kfac, batch(seed, *inputs))
        found.append(used(kfac))
    ones = INPUTS  # of the bias
    assert found[0] == found[1] == [3, 4, 9, ones]
    assert found[2] == [1, 3, 4, 9, 12, ones]
    assert found[3] == [0, 1, 3, 4, 9, 12, 19, ones]
    step(kfac, batch(9, *range(INPUTS - 1)))
    assert used(kfac) is None  # too few are left out


def test_a_checkpoint_goes_on_to_the_bit() -> None:
    ours = make()
    for seed in (0, 1, 2):
        step(ours, batch(seed, *STREAM[seed]))
    other = make()
    other.model.load_state_dict(ours.model.state_dict())
    other.load_state_dict(ours.state_dict())
    assert used(other) == used(ours)
    for seed in (3, 4):
        x = batch(seed, *STREAM[seed])
        assert all(map(torch.equal, step(ours, x), step(other, x)))


def test_inputs_whose_average_has_become_zero_are_left_out_again() -> None:
    kfac = make(ema=1.0)
    for seed, inputs in enumerate(((1, 2, 3), (5, 6))):
        step(kfac, batch(seed, *inputs))
    assert used(kfac) == [5, 6, INPUTS]


def test_a_batch_that_is_not_finite_leaves_the_average() -> None:
    kfac = make()
    step(kfac, batch(0, 3, 4))
    before = average(kfac, "0", "A").clone()
    x = batch(1, 3, 7)
    x[0, 7] = torch.nan
    with pytest.raises(NumericalError):
        step(kfac, x)
    assert torch.equal(average(kfac, "0", "A"), before)
    other = make()
    step(other, batch(0, 3, 4))
    assert_close(step(kfac, batch(2, 1, 3)), step(other, batch(2, 1, 3)), **EXACT)
