"""A run stopped anywhere goes on to the same end; a finished one is not run again."""

from __future__ import annotations

import itertools
import json
import re
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_runs import assert_same_run, records, small

import ocar
import ocar_lab
from ocar.errors import CheckpointError, ConfigError, MissingPackageError, NumericalError, RunError
from ocar.events import Finished, TaskEnded
from ocar.install import install_line
from ocar.streams.benchmarks import make_stream
from ocar_lab.experiment import (
    AlreadyFinished,
    Recorded,
    RunEvent,
    Saved,
    Started,
    Stopped,
    run_events,
)
from ocar_lab.experiment.limit import Limited
from ocar_lab.experiment.session import Cadence
from ocar_lab.runs.folder import CHECKPOINT, METRICS

CONVEX: dict[str, Any] = {
    "benchmark": "convex",
    "settings": {"lr": 0.01},
    "max_tasks": None,
    "max_batches": 120,
}


def stop_every(count: int) -> Any:
    """A function that says yes every so many times."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked % count == 0

    return stop


@pytest.mark.parametrize(
    ("values", "pieces"),
    [
        ({"method": "er"}, 21),
        ({"method": "ocar"}, 17),
        ({"method": "ocar", "settings": {"prediction": "average", "n_new": None}}, 23),
        ({"method": "er", "every": 4, "online": True, "checkpoint_every": 9}, 5),
        ({"method": "er", "iid": True, "max_tasks": None, "max_batches": 30}, 11),
        (CONVEX, 50),
    ],
    ids=["er", "ocar", "average", "every-4", "iid", "convex"],
)
def test_a_run_in_pieces_is_the_run_in_one(
    tmp_path: Path, values: dict[str, Any], pieces: int
) -> None:
    config = small(**values)
    whole = ocar_lab.run(config, out=tmp_path / "whole")
    assert whole.state == "finished"
    stop, sessions = stop_every(pieces), 0
    while (part := ocar_lab.run(config, out=tmp_path / "parts", stop=stop)).summary is None:
        assert part.state == "stopped"
        sessions += 1
    assert sessions >= 2
    assert_same_run(whole.path, part.path)
    assert len(part.status["sessions"]) == sessions + 1


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    config = small(max_batches=5)
    first = ocar_lab.run(config, out=tmp_path)
    before = {f: f.stat().st_mtime_ns for f in first.path.iterdir() if f.name != ".lock"}
    assert list(run_events(config, out=tmp_path)) == [AlreadyFinished(path=first.path)]
    assert before == {f: f.stat().st_mtime_ns for f in before}


def test_the_events_tell_the_whole_run(tmp_path: Path) -> None:
    events: list[RunEvent] = []
    config = small(checkpoint_every=10, every=5)
    run = ocar_lab.run(config, out=tmp_path, listen=events.append)
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert events[-1].summary == run.summary
    recorded = [e.evaluated for e in events if isinstance(e, Recorded)]
    assert tuple(recorded) == run.history
    assert [e.task for e in events if isinstance(e, TaskEnded)] == [0, 1]
    saved = [e.index for e in events if isinstance(e, Saved)]
    assert saved[-1] == recorded[-1].index  # the last state is there
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(saved))


def test_a_line_says_how_the_learner_is(tmp_path: Path) -> None:
    run = ocar_lab.run(small(method="ocar", max_batches=3), out=tmp_path)
    line = records(run.path)[0]
    assert {"loss", "classes", "tau", "replay_weight", "correct", "sizes"} <= line.keys()


def test_the_folder_says_what_made_it(tmp_path: Path) -> None:
    config = small(method="ocar", max_batches=2, seed=3)
    run = ocar_lab.run(config, out=tmp_path)
    assert run.path == tmp_path / config.folder()
    said = json.loads((run.path / "config.json").read_text())
    assert said["seed"] == 3
    assert said["config"]["settings"]["lr"] == 0.0600725
    assert said["config"]["transform"]["fisher"] == "sketched(2)"
    assert said["versions"]["torch"] == torch.__version__
    assert said["device"]["type"] == "cpu"


def test_settings_that_are_no_plain_values_are_written_down(tmp_path: Path) -> None:
    normalize = ocar.Normalize((0.5,), (0.25,))
    run = ocar_lab.run(small(max_batches=1, settings={"normalize": normalize}), out=tmp_path)
    said = json.loads((run.path / "config.json").read_text())
    written = {"kind": "Normalize", "mean": [0.5], "std": [0.25]}
    assert said["given"]["settings"] == {"normalize": written}
    assert said["config"]["settings"]["normalize"] == written


def test_a_run_goes_on_with_the_threads_it_began_with(tmp_path: Path) -> None:
    ocar_lab.run(small(threads=1), out=tmp_path, stop=lambda: True)
    before = torch.get_num_threads()
    for _ in run_events(small(threads=2, max_tasks=2), out=tmp_path, stop=lambda: True):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        (True, r"The last 2\d batches by batch \d+ were skipped: their loss or weights were not"),
        (False, r"The loss is \w+ at batch \d+: the learner has"),
    ],
)
@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_a_learner_that_diverges_is_a_failed_run(tmp_path: Path, guard: bool, message: str) -> None:
    config = small(settings={"lr": 1e30}, guard=guard)
    with pytest.raises(NumericalError, match=message):
        ocar_lab.run(config, out=tmp_path)
    run = ocar_lab.runs.read_run(tmp_path / config.folder())
    assert run.state == "failed"
    assert "NumericalError" in run.status["error"]


def test_without_polars_a_run_can_be_made_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(max_tasks=1)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingPackageError, match=re.escape(install_line("cli"))):
        ocar_lab.run(config, out=tmp_path)
    assert not list(tmp_path.iterdir())
    assert isinstance([*run_events(config, out=tmp_path)][-1], Finished)
    assert isinstance([*run_events(config, out=tmp_path)][-1], AlreadyFinished)
    monkeypatch.undo()
    assert ocar_lab.run(config, out=tmp_path).state == "finished"


def test_leaving_the_generator_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    config = small(checkpoint_every=3)
    whole = ocar_lab.run(config, out=tmp_path / "whole")
    for event in run_events(config, out=tmp_path):
        if isinstance(event, Recorded) and event.evaluated.index == 19:
            break
    del event
    assert ocar_lab.runs.read_run(tmp_path / config.folder()).state == "stopped"
    assert_same_run(whole.path, ocar_lab.run(config, out=tmp_path).path)


def test_a_second_process_is_told_and_leaves(tmp_path: Path) -> None:
    config = small()
    events = run_events(config, out=tmp_path)
    next(events)
    with pytest.raises(RunError, match="in use by process"):
        ocar_lab.run(config, out=tmp_path)
    events.close()  # type: ignore[attr-defined]


def test_a_damaged_checkpoint_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = ocar_lab.run(small(), out=tmp_path, stop=lambda: True)
    path = run.path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-9])
    before = (run.path / METRICS).read_bytes()
    with pytest.raises(CheckpointError, match=CHECKPOINT):
        ocar_lab.run(small(), out=tmp_path)
    assert (run.path / METRICS).read_bytes() == before


def test_a_full_disk_is_an_error_that_names_the_file_and_loses_nothing(tmp_path: Path) -> None:
    config = small(checkpoint_every=4, probe=False)
    whole = ocar_lab.run(config, out=tmp_path / "whole")
    # A limit on the size of files stands for the disk: the metrics outgrow it.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = (whole.path / METRICS).stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(OSError, match=f"/seed-0/({METRICS}|{CHECKPOINT})'$"):
            ocar_lab.run(config, out=tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_same_run(whole.path, ocar_lab.run(config, out=tmp_path / "full").path)


def test_limits_end_a_stream_early() -> None:
    stream = Limited(make_stream("split-digits"), max_tasks=2, max_batches=None)
    batches = list(stream)
    assert {batch.task for batch in batches} == {0, 1}
    assert batches[-1].last
    assert list(stream) == []
    assert stream.tasks == 2
    cut = Limited(make_stream("split-digits"), max_batches=7)
    assert [batch.last for batch in cut] == [False] * 6 + [True]
    assert (cut.tasks, len(cut)) == (1, 7)
    with pytest.raises(CheckpointError, match="not of a limited stream"):
        cut.load_state_dict({"position": 1})


def test_a_limit_of_batches_may_be_in_a_later_task(tmp_path: Path) -> None:
    short = ocar_lab.run(small(max_tasks=None, max_batches=60, probe=False), out=tmp_path)
    longer = ocar_lab.run(small(max_tasks=3, probe=False), out=tmp_path)
    assert [len(event.sizes) for event in short.history[-2:]] == [3, 3]
    assert [e.correct for e in short.history] == [e.correct for e in longer.history[:60]]
    boundaries = Limited(make_stream("split-digits"), max_batches=60)
    assert [b.task < boundaries.tasks - 1 for b in boundaries if b.last] == [True, True, False]


def test_a_gpu_that_is_not_there_is_a_wrong_call(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match="no CUDA device"):
        ocar_lab.run(small(device="cuda"), out=tmp_path)


@pytest.mark.parametrize("cost", [0.001, 0.02, 0.5, 3.0])
@pytest.mark.parametrize("batch", [0.01, 0.3])
def test_saving_costs_less_than_two_per_cent(cost: float, batch: float) -> None:
    now, spent, index = 0.0, 0.0, 0
    cadence = Cadence(clock=lambda: now)
    while now < 600:
        now += batch
        if cadence.is_due(index):
            now += cost
            spent += cost
            cadence.note(index, cost=cost)
        index += 1
    assert 0 < spent < 0.02 * now


def test_saving_by_count() -> None:
    cadence = Cadence(4, clock=lambda: 0.0)
    due = []
    for index in range(12):
        if cadence.is_due(index):
            due.append(index)
            cadence.note(index)
    assert due == [3, 7, 11]


def test_stopping_says_where(tmp_path: Path) -> None:
    events = list(run_events(small(), out=tmp_path, stop=stop_every(6)))
    assert isinstance(events[-1], Stopped)
    assert events[-1].index == 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.filterwarnings("ignore:Going on without CUDA graphs, more slowly. a full Fisher")
@pytest.mark.parametrize("method", ["er", "ocar"])
def test_a_run_on_a_gpu_goes_on(tmp_path: Path, method: str) -> None:
    pytest.importorskip("polars")
    settings = {"lr": 1e-3} | ({"tau_step": 0.0, "ema": 0.1} if method == "ocar" else {})
    config = small(**{**CONVEX, "method": method, "settings": settings, "device": "cuda"})
    stop = stop_every(50)
    while (run := ocar_lab.run(config, out=tmp_path, stop=stop)).summary is None:
        pass
    assert [event.index for event in run.history] == list(range(120))
    assert run.document["device"]["type"] == "cuda"
