"""Kronecker factors on the host: inputs that were never used, and reasons for failures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from cases_kronecker import PAIRS, lazily, make_buffer, positive, put, shapes
from implementations import Implementation, numbers
from tolerances import EXACT
from torch import Tensor
from torch.testing import assert_close

from ocar.accel import OPERATIONS, FactorBuffer, Pair, kronecker_host

PAIR = Pair("wide", 1, 20, 3, linear=True)
HOST, PLAIN = (Implementation(name, dtype=torch.float64) for name in ("host", "plain"))


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of these tests are wide enough."""
    monkeypatch.setattr(kronecker_host, "_WIDE", 16)


def buffer_of(used: Sequence[int], pair: Pair = PAIR, dtype: torch.dtype = torch.float64):
    """A is zero but for the rows and columns of some inputs."""
    buffer = FactorBuffer(shapes([pair]), like=torch.empty(0, dtype=dtype))
    index = torch.tensor(used, dtype=torch.int64)
    a = torch.zeros(1, pair.d_in, pair.d_in, dtype=torch.float64)
    a[0, index.unsqueeze(1), index] = positive(1, len(used), seed=1)[0]
    buffer.average("wide.A").copy_(a)
    buffer.average("wide.G").copy_(positive(1, pair.d_out, seed=2))
    buffer.estimates.copy_(buffer.averages)
    return buffer


def apply(
    implementation: Implementation, buffer: FactorBuffer, pair: Pair = PAIR, damping: float = 0.09
) -> list[Tensor]:
    """Damp and invert; whether that failed, and gradients given whole and as rows."""
    x, g = numbers(2, pair.d_in, seed=3), numbers(2, pair.d_out, seed=4)
    whole, product = numbers(1, pair.d_out, pair.d_in, seed=5), (g.mT @ x).unsqueeze(0)
    rates, dims = torch.zeros(2, dtype=torch.float64), torch.tensor([pair.d_in, pair.d_out])
    implementation["mix_and_damp"](buffer, (pair,), rates, dims, damping)
    failed = implementation["invert"](buffer, (pair,))
    parts = [
        implementation["precondition"](
            buffer, lazily((pair,), [gradient.to(buffer.averages)], [rows])
        )[0]
        for gradient, rows in ((whole, None), (product, (x, g)))
    ]
    return [failed, *parts]


@pytest.mark.parametrize("used", [[], [4], [0, 3, 19], list(range(18)), list(range(19)), range(20)])
@pytest.mark.parametrize("linear", [True, False])
def test_inputs_that_were_never_used_are_left_out(used: Sequence[int], linear: bool) -> None:
    pair = Pair("wide", 1, 20, 3, linear=linear)
    buffer = buffer_of(list(used), pair)
    found = apply(HOST, buffer, pair)
    assert_close(found, apply(PLAIN, buffer_of(list(used), pair), pair), **EXACT)
    factored = buffer.derived["factored"]["wide"]
    left_out = linear and len(used) <= 18
    assert (factored.used is not None) == left_out
    if left_out:
        assert factored.used.tolist() == list(used)
        assert factored.a.shape == (1, len(used), len(used))


def test_narrow_layers_are_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kronecker_host, "_WIDE", 21)
    buffer = buffer_of([1, 2])
    apply(HOST, buffer)
    assert buffer.derived["factored"]["wide"].used is None


def test_a_factor_that_cannot_be_inverted_is_named() -> None:
    buffer = make_buffer(HOST, PAIRS)
    buffer.average("head.G").sub_(10 * torch.eye(34))
    rates, dims = torch.zeros(10, dtype=torch.float64), torch.ones(10)
    OPERATIONS["mix_and_damp"](buffer, PAIRS, rates, dims, 0.04)
    assert int(HOST["invert"](buffer, PAIRS)) == 1
    assert buffer.derived["reason"] == (
        "The curvature of the outputs of layer 'head' is not positive definite: size (1, 34, 34), "
        "damping 0.2, tried in float64 too. A larger damping, or inputs of smaller scale, may help."
    )
    assert "factored" not in buffer.derived


def test_layers_that_are_not_finite_are_named() -> None:
    buffer = make_buffer(HOST, PAIRS)
    put("grouped.G", float("inf"))(buffer)
    put("one.A", float("nan"))(buffer)
    put("one.G", float("nan"))(buffer)
    rates, dims = torch.ones(10, dtype=torch.float64), torch.ones(10)
    assert not OPERATIONS["mix_and_damp"](buffer, PAIRS, rates, dims, 0.04)
    assert buffer.derived["infinite"] == ["grouped", "one"]


@pytest.mark.parametrize("used", [range(4), range(20)])
def test_a_damping_that_float32_would_lose_is_added_in_float64(used: Sequence[int]) -> None:
    """A is of rank one without any rounding; the damping is less than one digit of its diagonal."""
    buffer = FactorBuffer(shapes([PAIR]), like=torch.empty(0))
    root = torch.zeros(20)
    root[: len(used)] = 2.0 ** torch.arange(len(used)).remainder(5)
    buffer.average("wide.A").copy_(torch.outer(root, root))
    buffer.average("wide.G").copy_(1e8 * torch.eye(3))
    exact = FactorBuffer(shapes([PAIR]), like=torch.empty(0, dtype=torch.float64))
    exact.averages.copy_(buffer.averages)
    found, true = (apply(how, each, damping=1e-8) for how, each in ((HOST, buffer), (PLAIN, exact)))
    assert int(found[0]) == int(true[0]) == 0
    error = (found[1].double() - true[1]).norm() / true[1].norm()
    assert error < 1e-3
