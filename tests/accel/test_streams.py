"""Independent jobs: in parallel inside a recording, one after another elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from implementations import on_gpu

from ocar.accel import Fence, parallel, share_device, streams
from ocar.accel.streams import Side, is_recording, one_stream


@pytest.fixture
def _limit() -> Iterator[None]:
    before = streams._limit
    yield
    streams._limit = before


def test_the_first_job_is_called_last_and_results_keep_the_order_of_jobs() -> None:
    order: list[int] = []

    def job(number: int) -> int:
        order.append(number)
        return 10 * number

    assert parallel(*(lambda n=n: job(n) for n in range(4))) == [0, 10, 20, 30]
    assert order == [1, 2, 3, 0]
    assert parallel(lambda: job(7)) == [70]


def test_calls_may_be_nested() -> None:
    def inner() -> list[int]:
        return parallel(lambda: 1, lambda: 2)

    assert parallel(inner, lambda: 3, inner) == [[1, 2], 3, [1, 2]]
    with one_stream():
        with one_stream():
            assert parallel(inner, lambda: 3) == [[1, 2], 3]
        assert not streams._branches.allowed
    assert streams._branches.allowed


def test_an_error_in_a_job_is_its_callers() -> None:
    def fail() -> None:
        raise KeyError("of the job")

    with pytest.raises(KeyError, match="of the job"):
        parallel(lambda: 1, fail, lambda: pytest.fail("It went on."))
    with pytest.raises(KeyError), one_stream():
        fail()
    assert streams._branches.allowed


def test_outside_a_recording_a_side_is_the_current_stream() -> None:
    assert not is_recording()
    side = Side()
    assert side.run(lambda: 5) == 5
    side.wait()
    side.join()
    assert side._stream is None


@pytest.mark.usefixtures("_limit")
@pytest.mark.parametrize(("learners", "limit"), [(1, 8), (2, 5), (5, 2), (10, 1), (100, 1)])
def test_learners_share_the_streams_of_a_device(learners: int, limit: int) -> None:
    share_device(learners)
    assert streams._limit == limit


def test_elsewhere_a_fence_waits_for_nothing() -> None:
    fence = Fence(torch.device("cpu"))
    for call in (fence.before_write, fence.after_write, fence.before_read, fence.after_read):
        call()
    fence.finish()
    assert not fence._reads


@on_gpu
def test_a_read_waits_for_the_write_and_a_write_for_the_reads() -> None:
    fence, tensor = Fence(torch.device("cuda")), torch.zeros(2**24, device="cuda")
    other, seen = torch.cuda.Stream(), []
    for _ in range(3):
        fence.before_write()
        for _ in range(20):
            tensor.add_(1)
        fence.after_write()
        with torch.cuda.stream(other):
            fence.before_read()
            seen.append(tensor.sum() / 2**24)
            fence.after_read()
    fence.finish()
    assert [float(t) for t in seen] == [20.0, 40.0, 60.0]
