"""The copy of tensors before a step: what it sums up, and when one kernel makes it."""

from __future__ import annotations

import math

import pytest
import torch
from cases_guard import all_of, tensors
from implementations import IMPLEMENTATIONS, Implementation, on_gpu

from ocar.accel import COUNTS, Snapshot, Tensors, Verdict, snapshot
from ocar.accel.snapshot import TableSnapshot

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN

KINDS = [how for how in IMPLEMENTATIONS if how.values[0].has("snapshot")]


@pytest.mark.parametrize("how", KINDS)
def test_every_weight_and_statistic_is_in_the_sum(how: Implementation) -> None:
    given = tensors(how)
    before = how["snapshot"](given)
    checked = [*given.weights, *given.statistics]
    expected = sum(float(t.double().sum()) for t in checked)
    assert float(before.total()) == pytest.approx(expected, rel=1e-5)
    for place in checked:
        index = tuple(size - 1 for size in place.shape)
        value = place[index].clone()
        for bad in (math.nan, math.inf):
            place[index] = bad
            assert not before.total().isfinite()
        place[index] = value
    assert before.total().isfinite()


@pytest.mark.parametrize("how", KINDS)
def test_other_tensors_need_not_be_finite(how: Implementation) -> None:
    given = tensors(how)
    before = how["snapshot"](given)
    given.others[0].fill_(math.nan)
    assert before.total().isfinite()


@pytest.mark.parametrize("how", KINDS)
def test_accepted_tensors_stay_to_the_bit(how: Implementation) -> None:
    given = tensors(how)
    before = how["snapshot"](given)
    for t in all_of(given):
        t.copy_(t * 3)
    after = [t.clone() for t in all_of(given)]
    yes, one = torch.tensor(True, device=how.device), torch.ones((), device=how.device)
    before.restore_(yes, one)
    assert all(map(torch.equal, all_of(given), after))


def test_half_precision_is_summed_up_in_single() -> None:
    weight = torch.full((3000,), 60.0, dtype=torch.float16)  # the sum is more than float16 holds
    before = snapshot(Tensors(weights=[weight]))
    assert float(before.total()) == 180_000.0


def test_a_verdict_on_no_batch_yet() -> None:
    verdict = Verdict.on(torch.device("cpu"))
    assert bool(verdict.accepted)
    assert verdict.counts.tolist() == [0] * len(COUNTS)
    assert float(verdict.largest) == 0.0


def test_on_a_cpu_there_is_no_table() -> None:
    assert type(snapshot(tensors(Implementation("plain")))) is Snapshot


@on_gpu
def test_which_tensors_have_a_table() -> None:
    how = Implementation("plain", "cuda")
    given = tensors(how)
    assert type(snapshot(given)) is TableSnapshot
    weights = list(given.weights)
    for other in (
        Tensors(weights=[*weights, torch.ones(2, device="cuda").double()]),
        Tensors(weights=[weights[2][:, ::2]]),
        Tensors(weights=weights, statistics=[torch.tensor(3, device="cuda")]),
        Tensors(weights=weights, statistics=[torch.ones(2)]),
    ):
        assert type(snapshot(other)) is Snapshot
    assert type(snapshot(Tensors(weights=weights, others=[torch.ones(2)]))) is TableSnapshot
