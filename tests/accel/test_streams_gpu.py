"""Memory of parallel streams in a recording is not reused while another stream reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ocar.accel import parallel
from ocar.accel.streams import STREAMS, Side, _free, _used_inside

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = 1 << 22


def record(work: Callable[[], Tensor]) -> Tensor:
    """What some work returns when its recording is replayed."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        result = work()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    assert len(_free(torch.device("cuda", torch.cuda.current_device()))) == STREAMS
    assert not _used_inside
    return result


def ones() -> Tensor:
    return torch.ones(SIZE, device="cuda")


def overwrite() -> Tensor:
    """Fill as much memory as :func:`ones` takes, several times."""
    return torch.stack([torch.full((SIZE,), float(i), device="cuda") for i in range(8)])


def read_late(held: list[Tensor]) -> Tensor:
    """The sum of a tensor after much other work; the tensor is freed."""
    busy = torch.ones(2048, 2048, device="cuda")
    for _ in range(20):
        busy = (busy @ busy).clamp(max=1)
    return held.pop().sum() + 0 * busy.sum()


def test_a_job_does_not_get_what_the_first_job_frees() -> None:
    def work() -> Tensor:
        _, made = parallel(lambda: None, ones)
        held = [made]
        del made
        total, _ = parallel(lambda: read_late(held), overwrite)
        return total

    assert float(record(work)) == SIZE


def test_streams_used_inside_a_job_are_not_used_by_others_before_it_joins() -> None:
    def inner() -> Tensor:
        _, made = parallel(lambda: None, ones)
        held = [made]
        del made
        return read_late(held)

    def work() -> Tensor:
        _, total = parallel(lambda: parallel(lambda: None, overwrite), inner)
        return total

    assert float(record(work)) == SIZE


def test_a_job_reuses_the_streams_that_were_used_inside_it() -> None:
    used: list[torch.cuda.Stream] = []

    def inner() -> None:
        for _ in range(3):
            parallel(lambda: None, lambda: used.append(torch.cuda.current_stream()))

    def work() -> Tensor:
        parallel(lambda: None, inner)
        return ones()

    record(work)
    assert len(used) == 3
    assert len(set(used)) == 1


def test_without_a_free_stream_the_work_runs_on_the_current_one() -> None:
    def work() -> Tensor:
        sides = [Side() for _ in range(STREAMS + 2)]
        results = [side.run(lambda: torch.ones((), device="cuda")) for side in sides]
        for side in sides:
            side.join()
        return torch.stack(results).sum()

    assert float(record(work)) == STREAMS + 2
