"""Operations: the arguments choose the implementation, and a Triton that fails says so once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from implementations import on_gpu
from torch import Tensor

from ocar import accel
from ocar.accel import OPERATIONS
from ocar.accel import operation as module
from ocar.accel.operation import has_triton, known, operation, rounds_to_tf32


@pytest.fixture
def double() -> Iterator[module.Operation]:
    """An operation with two implementations, of small and of even numbers."""

    @operation
    def double(number: int, *, shift: int = 0) -> str:
        """Twice a number."""
        return f"plain {2 * number + shift}"

    @double.implementation("small", when=lambda number, shift=0: number < 10)
    def _small(number: int, *, shift: int = 0) -> str:
        return f"small {2 * number + shift}"

    @double.implementation("even", when=lambda number, **others: number % 2 == 0)
    def _even(number: int, *, shift: int = 0) -> str:
        return f"even {2 * number + shift}"

    yield double
    del OPERATIONS["double"]


def test_an_operation_is_registered_under_the_name_of_its_definition(
    double: module.Operation,
) -> None:
    assert OPERATIONS["double"] is double
    assert list(double.implementations) == ["plain", "small", "even"]
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice a number."


@pytest.mark.parametrize(
    ("number", "found"), [(11, "plain 23"), (3, "small 7"), (4, "small 9"), (12, "even 25")]
)
def test_the_first_implementation_that_fits_is_run(
    double: module.Operation, number: int, found: str
) -> None:
    assert double(number, shift=1) == found


def test_each_implementation_can_be_called_by_name(double: module.Operation) -> None:
    names = double.implementations
    assert [names[name](4) for name in names] == ["plain 8", "small 8", "even 8"]


def test_all_operations_are_exported() -> None:
    """But ``inverse``, which belongs to the linear algebra."""
    for name, found in OPERATIONS.items():
        if name != "inverse":
            assert getattr(accel, name) is found
    assert "inverse" in accel.linalg.__dict__


# --- Triton -------------------------------------------------------------------------------------


@pytest.fixture
def untried() -> Iterator[None]:
    """Nobody has asked yet whether Triton works."""
    module._triton_works.cache_clear()
    yield
    module._triton_works.cache_clear()


def put_in_place_of_the_trial(monkeypatch: pytest.MonkeyPatch, trial: object) -> None:
    package = __import__("ocar.accel.triton", fromlist=["triton"])
    monkeypatch.setitem(sys.modules, "ocar.accel.triton.trial", trial)
    if trial is None:
        monkeypatch.delattr(package, "trial", raising=False)
    else:
        monkeypatch.setattr(package, "trial", trial, raising=False)


class Launched:
    """A kernel that records its launches, and perhaps fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.launches = error, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: object) -> None:
            self.launches += 1
            if self.error is not None:
                raise self.error

        return launch


def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tensor of the trial here."""

    def empty(*size: int, device: str) -> Tensor:
        assert device == "cuda"
        return Tensor(*size)

    monkeypatch.setattr(torch, "empty", empty)


@pytest.mark.usefixtures("untried")
def test_a_triton_that_cannot_compile_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Launched(RuntimeError("Failed to find C compiler.\nPlease specify"))
    put_in_place_of_the_trial(monkeypatch, SimpleNamespace(fill=kernel))
    on_a_cpu(monkeypatch)
    text = r"^Steps on the GPU are slower: Triton cannot .* Failed to find C compiler\.$"
    with pytest.warns(UserWarning, match=text):
        assert not module._triton_works()
    assert not module._triton_works()
    assert kernel.launches == 1


@pytest.mark.usefixtures("untried")
def test_a_triton_that_works_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Launched()
    put_in_place_of_the_trial(monkeypatch, SimpleNamespace(fill=kernel))
    on_a_cpu(monkeypatch)
    assert module._triton_works()
    assert module._triton_works()
    assert kernel.launches == 1


@pytest.mark.usefixtures("untried")
def test_without_triton_nothing_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place_of_the_trial(monkeypatch, None)
    assert not module._triton_works()


@pytest.mark.usefixtures("untried")
def test_on_a_cpu_triton_is_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Launched(AssertionError("It was tried."))
    put_in_place_of_the_trial(monkeypatch, SimpleNamespace(fill=kernel))
    assert not has_triton(torch.zeros(1))
    assert kernel.launches == 0


# --- what the choices ask -----------------------------------------------------------------------


def test_a_flag_on_the_host_is_known() -> None:
    assert known(torch.tensor(True)) is True
    assert known(torch.tensor(False)) is False


@on_gpu
def test_a_flag_on_a_gpu_is_not_waited_for() -> None:
    assert known(torch.tensor(True, device="cuda")) is None


def test_tf32_follows_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        assert rounds_to_tf32() is allowed
