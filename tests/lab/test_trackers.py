"""Trackers: each gets what the metrics get, also when a run is resumed or fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from stored_runs import small

import ocar_lab
from ocar.errors import MissingPackageError
from ocar.install import install_line
from ocar_lab.cli import main
from ocar_lab.experiment import Ended, Job, Message, run_many, trackers
from ocar_lab.runs import Run, read_run

CONFIG = small(method="ocar", max_batches=12, probe=False)


class Notes(trackers.Tracker):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.written: list[tuple[int, dict[str, float]]] = []
        self.ended: list[str] = []

    def begin(self, path: Path, document: Mapping[str, Any], position: int) -> None:
        assert document["hash"] == path.parent.name
        self.begun.append(position)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self.written.append((step, dict(scalars)))

    def end(self, ending: trackers.Ending) -> None:
        self.ended.append(ending)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    notes = Notes()
    monkeypatch.setattr("ocar_lab.experiment.many.make_tracker", lambda *_: notes)
    return notes


def state(messages: Iterator[Message]) -> str:
    (ended,) = [message.state for message in messages if isinstance(message, Ended)]
    return ended


def stop_and_resume(name: trackers.TrackerName, out: Path) -> Run:
    """A run that stops after some batches and then goes on."""
    job = Job(config=CONFIG, out=out, tracker=name)
    assert state(run_many([job], stop=iter([False] * 5 + [True] * 9).__next__)) == "stopped"
    assert state(run_many([job])) == "finished"
    return read_run(out / CONFIG.folder())


def test_a_tracker_gets_every_evaluation_and_the_result(tmp_path: Path, notes: Notes) -> None:
    run = stop_and_resume("tensorboard", tmp_path)
    assert notes.begun[0] == 0
    assert 0 < notes.begun[1] < 12
    assert notes.ended == ["stopped", "finished"]
    steps = [step for step, scalars in notes.written if "accuracy/now" in scalars]
    assert steps == list(range(1, 13))
    for (_, scalars), event in zip(notes.written, run.history, strict=False):
        assert scalars["accuracy/now"] == event.accuracy
        assert scalars["tasks/1"] == event.accuracies[0]
        assert scalars["learner/tau"] > 0
    assert run.summary is not None
    assert notes.written[-1][1]["result/acc"] == run.summary.acc


def test_a_run_that_fails_is_closed_as_failed(
    tmp_path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("ocar.learner.Learner.learn", fail)
    job = Job(config=CONFIG, out=tmp_path, tracker="tensorboard")
    assert state(run_many([job])) == "failed"
    assert notes.ended == ["failed"]


@pytest.mark.parametrize(("name", "module"), [("mlflow", "mlflow"), ("wandb", "wandb")])
def test_a_missing_tracker_is_said_before_any_run(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for known in [n for n in sys.modules if n.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, module, None)
    call = ["run", "split-digits", "er", "--out", str(tmp_path), "--tracker", name]
    assert main([*call, "--device", "cpu"]) == 1
    assert capsys.readouterr().err.endswith(f"needs {module}: {install_line(name)}\n")
    assert not list(tmp_path.rglob("seed-0"))
    with pytest.raises(MissingPackageError):
        trackers.make_tracker(name, tmp_path)  # type: ignore[arg-type]


def test_the_former_flag_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "split-digits", "er", "--tensorboard"]) == 2
    assert "Unknown flag --tensorboard. Did you mean --tracker?" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")  # of mlflow's own
def test_mlflow_gets_what_the_metrics_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="MLflow is not installed")
    pytest.importorskip("sqlalchemy", reason="MLflow's database is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = stop_and_resume("mlflow", tmp_path)
    client = tracking.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("split-digits")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "ocar seed 0"
    assert found.data.params["memory"] == str(run.config["settings"]["memory"])
    now = sorted(client.get_metric_history(found.info.run_id, "accuracy/now"), key=lambda m: m.step)
    assert [metric.step for metric in now] == list(range(1, 13))
    assert [metric.value for metric in now] == [event.accuracy for event in run.history]
    assert run.summary is not None
    assert found.data.metrics["result/acc"] == run.summary.acc


@pytest.mark.filterwarnings("ignore")  # of wandb's own
def test_weights_and_biases_are_written_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    with_tracker = ocar_lab.run(CONFIG, out=tmp_path, listen=trackers.WeightsAndBiases())
    (file,) = with_tracker.path.glob("wandb/offline-run-*/run-*.wandb")
    assert file.name == f"run-{CONFIG.hash()}-0.wandb"
    assert wandb_history(file, "accuracy/now") == [e.accuracy for e in with_tracker.history]
    assert with_tracker.summary is not None
    assert wandb_history(file, "result/acc") == [with_tracker.summary.acc]


def wandb_history(file: Path, name: str) -> list[float]:
    """One number over time, as the file has it."""
    from wandb.proto import wandb_internal_pb2

    records = [wandb_internal_pb2.Record.FromString(data) for data in wandb_records(file)]
    items = [item for record in records for item in record.history.item]
    return [json.loads(i.value_json) for i in items if name in (i.key, *i.nested_key)]


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of a file in the format of LevelDB's logs, after a header of 7 bytes.

    A block of 32 KiB has parts with a checksum, a length and a kind: 1 for a whole record, 2, 3 and
    4 for its first, middle and last part.
    """
    data, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield record
            record = b""
