"""Functions that are recorded as CUDA graphs on a GPU, and run as they are elsewhere."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from implementations import on_gpu
from torch import Tensor

from ocar.accel import Graph, parallel, release_memory
from ocar.accel.graph import ATTEMPTS, _place, _without_garbage_collection
from ocar.accel.streams import STREAMS, _free, _used_inside, is_recording

CPU = torch.device("cpu")


class Function:
    """A function of tensors that counts its calls."""

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        self.compute, self.calls = compute, 0

    def __call__(self, *tensors: Tensor, **options: object) -> Tensor:
        self.calls += 1
        return self.compute(*tensors, **options)


# --- on a CPU -----------------------------------------------------------------------------------


def test_on_a_cpu_nothing_is_recorded() -> None:
    function = Function(lambda x, y: x + 2 * y)
    graph = Graph(function, device=CPU, generators=[torch.Generator()])
    assert not graph.enabled
    for step in range(4):
        x = torch.full((3,), float(step))
        assert torch.equal(graph(x, x), 3 * x)
    assert function.calls == 4
    assert not graph._recorded
    graph.forget()
    graph.release()
    release_memory(CPU)


def test_the_key_is_handed_over_unless_it_is_none() -> None:
    graph = Graph(lambda x, **options: x + options.get("key", 100), device=CPU)
    assert int(graph(torch.tensor(1), key=5)) == 6
    assert int(graph(torch.tensor(1))) == 101


def test_several_results_stay_a_tuple() -> None:
    graph = Graph(lambda x: (x, 2 * x), device=CPU)
    one, two = graph(torch.tensor(3))
    assert (int(one), int(two)) == (3, 6)


def test_an_error_of_the_function_is_its_callers() -> None:
    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("of the function")

    with pytest.raises(RuntimeError, match="of the function"):
        Graph(fail, device=CPU)(torch.tensor(1))


def test_the_place_of_an_error_is_outside_pytorch() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.nn.Linear(3, 2)(torch.ones(5))
    assert _place(raised.value) == f"test_graph.py, line {raised.tb.tb_lineno}"


def test_garbage_is_collected_again_afterwards() -> None:
    assert gc.isenabled()
    with _without_garbage_collection():
        assert not gc.isenabled()
        with _without_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


# --- on a GPU -----------------------------------------------------------------------------------


@on_gpu
def test_the_second_call_records_and_later_ones_launch() -> None:
    function = Function(lambda x: 2 * x + 1)
    graph = Graph(function, device=torch.device("cuda"))
    calls = []
    for step in range(5):
        x = torch.full((3,), float(step))  # on the host
        assert graph(x).cpu().tolist() == [2 * step + 1] * 3
        calls.append(function.calls)
    assert calls == [1, 2, 2, 2, 2]


@on_gpu
def test_every_shape_type_and_key_has_a_recording() -> None:
    function = Function(lambda x, key=1: key * x)
    graph = Graph(function, device=torch.device("cuda"))
    given = [(torch.ones(2), None), (torch.ones(3), None), (torch.ones(2), 3)]
    given.append((torch.ones(2, dtype=torch.float64), None))
    for _ in range(3):
        for x, key in given:
            assert torch.equal(graph(x, key=key).cpu(), (key or 1) * x)
    assert function.calls == 2 * len(given)
    assert len(graph._recorded) == len(given)


@on_gpu
def test_forgotten_recordings_are_made_anew() -> None:
    weight = torch.ones(2, device="cuda")
    function = Function(lambda x: x * weight)
    graph = Graph(function, device=torch.device("cuda"))
    for _ in range(3):
        graph(torch.ones(2))
    weight = torch.full((2,), 5.0, device="cuda")
    graph.forget()
    for _ in range(3):
        assert graph(torch.ones(2)).tolist() == [5.0, 5.0]
    assert function.calls == 4
    graph.release()
    release_memory(torch.device("cuda"))


@on_gpu
def test_a_function_that_cannot_be_recorded_warns_once_and_runs() -> None:
    graph = Graph(lambda x: x * float(x.sum()), device=torch.device("cuda"))  # it waits
    for _ in range(ATTEMPTS):
        assert graph(torch.ones(2)).tolist() == [2.0, 2.0]
    assert graph.enabled
    with pytest.warns(UserWarning, match=r"^Going on without CUDA .* \(test_graph.py, line \d+\)"):
        assert graph(torch.ones(2)).tolist() == [2.0, 2.0]
    assert not graph.enabled
    assert graph(torch.ones(2)).tolist() == [2.0, 2.0]


@on_gpu
def test_parallel_streams_are_free_after_a_failed_recording() -> None:
    graph = Graph(
        lambda x: parallel(lambda: x * 2, lambda: float(x.sum()))[0], device=torch.device("cuda")
    )
    for _ in range(2):
        assert graph(torch.ones(2)).tolist() == [2.0, 2.0]
    assert graph.enabled
    assert not _used_inside
    assert len(_free(torch.device("cuda", torch.cuda.current_device()))) == STREAMS


@on_gpu
def test_a_recording_that_is_not_wanted_is_not_made() -> None:
    function = Function(lambda x: x + 1)
    graph = Graph(function, device=torch.device("cuda"), enabled=False)
    for _ in range(3):
        graph(torch.ones(2))
    assert function.calls == 3


@on_gpu
def test_random_numbers_are_those_of_the_function() -> None:
    """A launch draws from the generator as the function would."""

    def draws(record: bool) -> list[list[float]]:
        generator = torch.Generator("cuda").manual_seed(3)
        graph = Graph(
            lambda x: x + torch.rand(3, device="cuda", generator=generator),
            device=torch.device("cuda"),
            generators=[generator],
            enabled=record,
        )
        return [graph(torch.zeros(3)).tolist() for _ in range(5)]

    assert draws(True) == draws(False)


@on_gpu
def test_a_recording_with_parallel_jobs() -> None:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(is_recording())
        one, two, three = parallel(lambda: x + 1, lambda: x * 2, lambda: x * 3)
        return one + two + three

    graph = Graph(function, device=torch.device("cuda"))
    for step in range(5):
        x = torch.full((1000,), float(step))
        assert (graph(x) == 6 * step + 1).all()
    assert seen == [False, True]
