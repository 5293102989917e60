"""Several runs: side by side or one after another the same; one that fails leaves the others."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_runs import assert_same_run, small

import ocar_lab
from ocar_lab.experiment import Ended, Job, Message, Progress, run_many
from ocar_lab.experiment.executors import Threads
from ocar_lab.experiment.many import follow_jobs, is_evaluated
from ocar_lab.runs import read_run


def jobs(out: Path, *configs: dict[str, Any]) -> list[Job]:
    return [Job(config=small(probe=False, **values), out=out) for values in configs]


def ends(messages: Iterator[Message]) -> dict[int, str]:
    return {m.job: m.state for m in messages if isinstance(m, Ended)}


def test_runs_one_after_another(tmp_path: Path) -> None:
    todo = jobs(tmp_path, {"seed": 0, "max_batches": 3}, {"seed": 1, "max_batches": 3})
    messages = list(run_many(todo))
    assert [m.job for m in messages if isinstance(m, Ended)] == [0, 1]
    first = messages[0]
    assert isinstance(first, Progress)
    assert (first.done, first.batches, first.resumed) == (0, 3, 0)
    assert ends(run_many(todo)) == {0: "already finished", 1: "already finished"}
    last = [m for m in messages if isinstance(m, Ended)][-1]
    assert last.metrics["acc"] is not None


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_a_run_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    todo = jobs(tmp_path, {"settings": {"lr": 1e30}}, {"max_batches": 3})
    endings = [m for m in run_many(todo) if isinstance(m, Ended)]
    assert [m.state for m in endings] == ["failed", "finished"]
    assert endings[0].error.startswith("The last 2")
    assert "Traceback" in endings[0].details


def test_a_request_to_stop_is_heard(tmp_path: Path) -> None:
    asked = False

    def stop() -> bool:
        return asked

    seen: list[Message] = []
    for message in run_many(jobs(tmp_path, {"seed": 0}, {"seed": 1}), stop=stop):
        seen.append(message)
        asked = asked or (isinstance(message, Progress) and message.done > 0)
    assert ends(iter(seen)) == {0: "stopped"}


@pytest.mark.long
def test_workers(tmp_path: Path) -> None:
    """The same runs as alone; one fails, one is killed, one is asked to stop, one never begins."""
    er, ocar = {"max_batches": 20}, {"max_batches": 20, "method": "ocar"}
    slow = {"settings": {"passes": 100}}
    alone = jobs(tmp_path / "alone", er, ocar)
    assert ends(run_many(alone)) == {0: "finished", 1: "finished"}
    failing = {"settings": {"lr": 1e30}}
    slowly = [{**slow, "seed": seed} for seed in range(3)]
    beside = jobs(tmp_path / "beside", er, ocar, failing, *slowly)
    killed: list[int] = []
    seen: list[Message] = []
    for message in run_many(beside, workers=2, stop=lambda: bool(killed)):
        seen.append(message)
        begun = {m.job for m in seen if isinstance(m, Progress) and m.done > 0}
        if begun >= {3, 4} and not killed:
            killed.append(int(read_run(beside[3].out / beside[3].config.folder()).status["pid"]))
            os.kill(killed[0], signal.SIGKILL)
    assert ends(iter(seen)) == {
        0: "finished",
        1: "finished",
        2: "failed",
        3: "failed",
        4: "stopped",
    }
    died = next(m for m in seen if isinstance(m, Ended) and m.job == 3)
    assert "exit code -9" in died.error
    assert read_run(beside[3].out / beside[3].config.folder()).state == "killed"
    for job, other in zip(alone, beside, strict=False):
        assert_same_run(job.out / job.config.folder(), other.out / other.config.folder())
        assert read_run(job.out / job.config.folder()).alone
        assert not read_run(other.out / other.config.folder()).alone


def test_tensorboard_gets_what_the_metrics_get(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    config = small(method="ocar", max_batches=12, probe=False)
    job = Job(config=config, out=tmp_path, tracker="tensorboard")
    assert ends(run_many([job], stop=iter([False] * 5 + [True] * 9).__next__)) == {0: "stopped"}
    assert ends(run_many([job])) == {0: "finished"}
    run = read_run(tmp_path / config.folder())
    events = event_accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    now = events.Scalars("accuracy/now")
    assert [e.step for e in now] == list(range(1, 13))
    assert [e.value for e in now] == pytest.approx([e.accuracy for e in run.history])
    assert run.summary is not None
    assert events.Scalars("accuracy/aaa")[-1].value == pytest.approx(run.summary.aaa)
    assert events.Scalars("result/acc")[0].value == pytest.approx(run.summary.acc)
    assert "learner/tau" in events.Tags()["scalars"]


# --- threads, which on a GPU take the place of processes ---


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of a GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())


@pytest.mark.usefixtures("streams")
def test_threads_do_what_is_done_one_after_another(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [{"seed": seed, "max_batches": 4} for seed in range(3)]
    todo = jobs(tmp_path / "threads", *values, {"settings": {"lr": 1e30}})
    threads = Threads(2, is_ahead=is_evaluated)
    messages = follow_jobs(dict(enumerate(todo)), threads, stop=lambda: False)
    assert ends(messages) == {0: "finished", 1: "finished", 2: "finished", 3: "failed"}
    for config in [job.config for job in todo[:3]]:
        alone = ocar_lab.run(config, out=tmp_path / "alone")
        assert_same_run(alone.path, tmp_path / "threads" / config.folder())


@pytest.mark.usefixtures("streams")
def test_threads_stop_when_they_are_asked(tmp_path: Path) -> None:
    todo = dict(enumerate(jobs(tmp_path, *({"seed": seed} for seed in range(3)))))
    begun = threading.Event()

    def tell() -> Iterator[Message]:
        threads = Threads(2, is_ahead=is_evaluated)
        for message in follow_jobs(todo, threads, stop=begun.is_set):
            begun.set()
            yield message

    assert ends(tell()) in ({0: "stopped"}, {0: "stopped", 1: "stopped"})
