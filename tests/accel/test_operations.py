"""Every operation in every implementation, against its definition in double precision.

The definition itself is compared with references that share no code with the package. See
``implementations.py`` for how kernels run without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases_convolution import make_norm, norm_inputs, question
from cases_kronecker import lazily, positive, shapes
from implementations import (
    IMPLEMENTATIONS,
    ORACLE,
    Case,
    Implementation,
    assert_same,
    module,
    numbers,
    on_gpu,
)
from operation_cases import CASES
from torch import nn

from ocar.accel import OPERATIONS, FactorBuffer, Pair, kronecker_triton
from ocar.accel.divergence import Tile
from ocar.accel.norm import _fused

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of NaN in the interpreter
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

COMBINATIONS = [
    pytest.param(case, how.values[0], id=f"{case}-{how.id}", marks=how.marks)
    for case in CASES
    for how in IMPLEMENTATIONS
    if how.values[0].has(case.operation) and how.values[0].name in case.only
]


def test_every_operation_has_a_case_for_every_implementation() -> None:
    """A new operation, or a new implementation, must come with cases."""
    for name, operation in OPERATIONS.items():
        covered = {how for case in CASES if case.operation == name for how in case.only}
        assert operation.implementations.keys() <= covered, name
        assert any(case.reference is not None for case in CASES if case.operation == name), name
    names = [str(case) for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", [case for case in CASES if case.reference is not None], ids=str)
def test_the_definition_against_a_reference(case: Case) -> None:
    assert case.reference is not None
    assert_same(case.run(ORACLE), case.reference(), 0.0 if case.close == 0 else case.definition)


@pytest.mark.parametrize(("case", "implementation"), COMBINATIONS)
def test_implementations_against_the_definition(case: Case, implementation: Implementation) -> None:
    assert_same(case.run(implementation), case.run(ORACLE), case.tolerance(implementation))


@pytest.mark.parametrize("how", [how for how in IMPLEMENTATIONS if "triton" in str(how.id)])
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.operation in ("mix_and_damp", "invert", "precondition")], ids=str
)
def test_factors_that_are_too_large_for_the_kernels(
    case: Case, how: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library takes these; still all factors change, or none."""
    monkeypatch.setattr(kronecker_triton, "LARGEST", 10)
    assert_same(case.run(how), case.run(ORACLE), case.tolerance(how))


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Operations and implementations that the arguments chose, but for definitions."""
    found: set[tuple[str, str]] = set()

    def spy(name: str, how: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            found.add((name, how))
            return function(*args, **kwargs)

        return run

    for name, operation in OPERATIONS.items():
        for how, function in operation.implementations.items():
            if how != "plain":
                monkeypatch.setitem(operation.implementations, how, spy(name, how, function))
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_a_cpu_the_host_implementation_is_chosen(
    case: Case, called: set[tuple[str, str]]
) -> None:
    chosen = Implementation("chosen")
    assert_same(case.run(chosen), case.run(ORACLE), case.tolerance(chosen))
    has_host = "host" in OPERATIONS[case.operation].implementations
    assert ((case.operation, "host") in called) == has_host
    assert not any(how == "triton" for _, how in called)


@on_gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_a_gpu_the_kernels_are_chosen(case: Case, called: set[tuple[str, str]]) -> None:
    chosen, expected = Implementation("chosen", "cuda"), case.run(ORACLE)
    called.clear()
    assert_same(case.run(chosen), expected, case.tolerance(chosen))
    has_kernel = "triton" in OPERATIONS[case.operation].implementations and "triton" in case.only
    assert ((case.operation, "triton") in called) == has_kernel
    assert not any(how == "host" for _, how in called)


@pytest.mark.parametrize("how", [how for how in IMPLEMENTATIONS if "double" not in str(how.id)])
@pytest.mark.parametrize("side", ["A", "G"])
def test_inverses_of_badly_conditioned_matrices(how: Implementation, side: str) -> None:
    """At a condition of 1e7 every implementation has an error of the order of the library's.

    That is some per cent; the library's own depends on the machine. The kernels multiply three TF32
    parts, which is a little less exact.
    """
    size = 40
    pair = Pair("layer", 1, size, 1) if side == "A" else Pair("layer", 1, 1, size)
    matrix = positive(1, size, seed=3, least=1e-7) + 1e-7 * torch.eye(size, dtype=torch.float64)
    matrix = matrix.float().double()
    buffer = FactorBuffer(shapes([pair]), like=how.given(matrix))
    buffer.estimates.fill_(1.0)
    buffer.estimate(f"layer.{side}").copy_(matrix)
    buffer.averages.copy_(buffer.estimates)
    assert int(how["invert"](buffer, (pair,))) == 0
    found = []
    for row in torch.eye(size, dtype=torch.float64):
        gradient = how.given(row.view(1, 1, size) if side == "A" else row.view(1, size, 1))
        found.append(how["precondition"](buffer, lazily((pair,), [gradient]))[0].flatten())
    true = torch.linalg.inv(matrix[0])
    library = torch.cholesky_inverse(torch.linalg.cholesky(matrix[0].float())).double()
    error, others = (
        (each - true).norm() / true.norm() for each in (torch.stack(found).double().cpu(), library)
    )
    assert error < 8 * others


@pytest.mark.parametrize("how", [how for how in IMPLEMENTATIONS if "triton" in str(how.id)])
@pytest.mark.parametrize("tile", ["many pixels", "few terms", "split"])
@pytest.mark.parametrize("name", ["one window", "odd sizes"])
def test_a_divergence_however_the_work_is_cut(
    how: Implementation, tile: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles = {
        "many pixels": Tile(pixels=64, block=32, split=1, terms=64, stages=1),
        "few terms": Tile(pixels=32, block=16, split=1, terms=16, stages=3),
        "split": Tile(pixels=16, block=16, split=4, terms=16, stages=3),
    }
    monkeypatch.setattr(module("divergence"), "tile", lambda count, outputs: tiles[tile])
    case = next(c for c in CASES if str(c) == f"divergence-{name}")
    (found,) = case.run(how)
    assert_same([found], case.run(ORACLE), case.tolerance(how))
    assert torch.equal(case.run(how)[0], found)  # always in the same order


@pytest.mark.parametrize("how", [how for how in IMPLEMENTATIONS if "triton" in str(how.id)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", ["image", "weight"])
def test_a_divergence_that_is_not_finite(how: Implementation, bad: float, place: str) -> None:
    model, x, active, before = question()
    if place == "image":
        x[-1, 0, 3, 3] = bad
    else:
        model.blocks[1].conv2.weight.data[1, 1, 1, 1] = bad
    model = model.to(how.device, how.dtype)
    given = how.given(x), active.to(how.device), how.given(before)
    assert how["divergence"](model, *given).isnan().all()


@pytest.mark.parametrize("how", [how for how in IMPLEMENTATIONS if "triton" in str(how.id)])
@pytest.mark.parametrize("shape", [(4, 2, 5, 5), (9, 2, 64, 64)], ids=["whole", "in parts"])
def test_a_mean_far_from_zero(how: Implementation, shape: tuple[int, ...]) -> None:
    """The variance is that of the numbers without their mean."""
    x = 4096 + numbers(*shape)
    norm = nn.BatchNorm2d(2).to(how.device)
    y = how["norm_act"](norm, how.given(x))
    expected = nn.BatchNorm2d(2).double()(x.float().double()).relu()
    assert_same([y], [expected], 1e-3)


@pytest.mark.parametrize("how", [how for how in IMPLEMENTATIONS if "triton" in str(how.id)])
@pytest.mark.parametrize("last", [False, True])
def test_a_normalisation_without_relu(how: Implementation, last: bool) -> None:
    """What a batched backward pass of a BatchNorm uses."""
    norm = make_norm(5, {}).to(how.device, how.dtype)
    x, _, columns = (how.given(t) for t in norm_inputs((3, 5, 4, 6), last=last))
    y = _fused(norm, x.requires_grad_(), None, relu=False)
    gradients = torch.func.vmap(lambda g: torch.autograd.grad(y, x, g, retain_graph=True)[0])(
        columns
    )
    exact = make_norm(5, {})
    given, _, wanted = norm_inputs((3, 5, 4, 6), last=last)
    expected = exact(given.requires_grad_())
    pulled = [torch.autograd.grad(expected, given, g, retain_graph=True)[0] for g in wanted]
    assert_same([y, gradients], [expected, torch.stack(pulled)], 1e-5)
