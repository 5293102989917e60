"""Executors: each does all of the work, says what it says, stops it, survives its failures."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from ocar.errors import ConfigError, NumericalError
from ocar_lab.experiment.executors import (
    Executor,
    Inline,
    Processes,
    Stop,
    Threads,
    WorkError,
    Workers,
    do_all,
)
from ocar_lab.experiment.executors.base import never

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Count:
    """Work that counts."""

    to: int

    def __call__(self, stop: Stop) -> Iterator[int]:
        yield from range(self.to)


@dataclass(frozen=True)
class UntilAsked:
    """Work that ends when it is asked to."""

    def __call__(self, stop: Stop) -> Iterator[str]:
        yield "begun"
        while not stop():
            time.sleep(0.005)
            yield "going on"
        yield "stopped"


@dataclass(frozen=True)
class Raise:
    """Work that goes wrong."""

    error: Exception

    def __call__(self, stop: Stop) -> Iterator[str]:
        yield "begun"
        raise self.error


@dataclass(frozen=True)
class Die:
    """Work that takes its process with it."""

    def __call__(self, stop: Stop) -> Iterator[str]:
        yield "begun"
        os.kill(os.getpid(), signal.SIGKILL)
        yield "never"


@dataclass(frozen=True)
class SayThreads:
    """Work that says how many threads its process was given."""

    def __call__(self, stop: Stop) -> Iterator[str]:
        yield os.environ["OMP_NUM_THREADS"]


def threads() -> Executor:
    return Threads(2, is_ahead=lambda message: True)


EXECUTORS: list[Callable[[], Executor]] = [Inline, threads, lambda: Processes(2)]


@pytest.fixture(params=EXECUTORS, ids=["inline", "threads", "processes"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Executor:
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    made: Executor = request.param()
    return made


def by_job(heard: list[tuple[int, Any]]) -> dict[int, list[Any]]:
    """The messages of each job; an error has to be the last."""
    messages: dict[int, list[Any]] = {}
    over: set[int] = set()
    for job, message in heard:
        assert job not in over
        if isinstance(message, WorkError):
            over.add(job)
        else:
            messages.setdefault(job, []).append(message)
    return messages


def errors(heard: list[tuple[int, Any]]) -> dict[int, WorkError]:
    return {job: message for job, message in heard if isinstance(message, WorkError)}


def test_all_work_is_done_and_what_raises_leaves_the_others(executor: Executor) -> None:
    works = {
        3: Count(3),
        4: Raise(NumericalError("too large")),
        5: Raise(OSError(28, "No space left")),
        6: Count(5),
    }
    heard = list(do_all(executor, works, stop=never))
    assert by_job(heard) == {3: [0, 1, 2], 4: ["begun"], 5: ["begun"], 6: [0, 1, 2, 3, 4]}
    raised = errors(heard)
    assert {job: error.error for job, error in raised.items()} == {
        4: "too large",
        5: "OSError: [Errno 28] No space left",
    }
    assert "Traceback" in raised[4].details


def test_work_stops_when_it_is_asked_and_its_worker_goes_on(executor: Executor) -> None:
    messages: list[Any] = []
    with executor:
        for work in (UntilAsked(), Count(2), UntilAsked()):
            asked: list[bool] = []
            for message in executor.run(work, lambda asked=asked: bool(asked)):
                messages.append(message)
                asked.append(True)
    told = [message for message in messages if message != "going on"]
    assert told == ["begun", "stopped", 0, 1, "begun", "stopped"]


def test_closing_the_generator_stops_the_work(executor: Executor) -> None:
    with executor:
        for _ in range(2):
            running = executor.run(UntilAsked(), never)
            assert next(running) == "begun"
            running.close()
        assert list(executor.run(Count(2), never)) == [0, 1]
        assert len(getattr(executor, "_processes", [1])) == 1  # the worker was used again


def test_nothing_is_begun_after_a_request_to_stop(executor: Executor) -> None:
    asked: list[bool] = []
    heard = []
    works = {job: UntilAsked() for job in range(9)}
    for one in do_all(executor, works, stop=lambda: bool(asked)):
        heard.append(one)
        asked.append(True)
    for messages in by_job(heard).values():
        assert messages[-1] == "stopped"
    assert {job for job, _ in heard} <= {0, 1}


def test_a_process_that_dies_takes_its_own_work_only() -> None:
    heard = list(do_all(Processes(2), {0: Die(), 1: Count(2), 2: Count(3)}, stop=never))
    assert by_job(heard) == {0: ["begun"], 1: [0, 1], 2: [0, 1, 2]}
    (died,) = errors(heard).items()
    assert died[0] == 0
    assert "died with exit code -9" in died[1].error


@pytest.mark.parametrize(("set_to", "given"), [(None, "4"), ("3", "3")])
def test_processes_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, set_to: str | None, given: str
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 9)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_to is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", set_to)
    heard = list(do_all(Processes(2), {0: SayThreads(), 1: SayThreads()}, stop=never))
    assert by_job(heard) == {0: [given], 1: [given]}
    assert os.environ.get("OMP_NUM_THREADS") == set_to


def test_which_executor_it_is() -> None:
    def made(workers: Workers, *, on_gpu: bool) -> Executor:
        return workers.executor(on_gpu=on_gpu, is_ahead=lambda _: True)

    assert isinstance(made(Workers(), on_gpu=True), Inline)
    assert isinstance(made(Workers(count=2), on_gpu=False), Processes)
    assert isinstance(made(Workers(count=2), on_gpu=True), Threads)
    with pytest.raises(ConfigError, match="Invalid workers=0"):
        Workers(count=0)
    with pytest.raises(ConfigError, match="Without a Ray cluster"):
        Workers(gpus=0.5)
