"""The run folder: one process at a time, no half-written file, nothing of another configuration."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ocar.errors import CheckpointError, RunError
from ocar_lab.runs import RunFolder, describe_process, read_run
from ocar_lab.runs.folder import CHECKPOINT, CONFIG, METRICS, STATUS
from ocar_lab.runs.provenance import source_revision

DOCUMENT = {"config": {"benchmark": "b", "lr": 0.1}, "seed": 3, "label": "er", "hash": "abc"}

HOLD = """
import sys, time
from pathlib import Path
from ocar_lab.runs.folder import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def begin(path: Path) -> RunFolder:
    return RunFolder(path).__enter__()


def test_two_processes_never_work_in_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"in use by process {other.pid} on "):
            begin(tmp_path)
        other.send_signal(signal.SIGKILL)
    with RunFolder(tmp_path):  # the lock of a killed process is gone with it
        pass


def test_the_lock_is_given_back_and_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with RunFolder(tmp_path), pytest.raises(RunError, match="in use"):
            begin(tmp_path)


def test_a_folder_keeps_the_document_that_it_was_begun_with(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a" / "b") as folder:
        assert folder.describe({**DOCUMENT, "threads": 2}) == {**DOCUMENT, "threads": 2}
        assert folder.describe({**DOCUMENT, "threads": 1})["threads"] == 2


@pytest.mark.parametrize("part", ["config", "seed"])
def test_a_folder_of_another_run_is_refused(tmp_path: Path, part: str) -> None:
    with RunFolder(tmp_path) as folder:
        folder.describe(DOCUMENT)
        with pytest.raises(RunError, match=f"has another {part}"):
            folder.describe({**DOCUMENT, part: 7})


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text('{"config": {')
    with RunFolder(tmp_path) as folder, pytest.raises(RunError, match=r"config\.json cannot be"):
        folder.describe(DOCUMENT)
    (tmp_path / CONFIG).write_text("[]")
    with pytest.raises(RunError, match="holds no object"):
        read_run(tmp_path)


def test_lines_after_the_checkpoint_are_cut_off(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        assert folder.restore() is None
        folder.append({"event": "x", "n": 1})
        folder.save({"w": torch.arange(3)}, {"position": 1})
        folder.append({"event": "x", "n": 2})
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"event": "x", "n": ')
    with RunFolder(tmp_path) as folder:
        restored = folder.restore()
        assert restored is not None
        tensors, values, records = restored
        assert torch.equal(tensors["w"], torch.arange(3))
        assert values == {"position": 1}
        assert records == [{"event": "x", "n": 1}]
        folder.append({"event": "x", "n": 3})
        folder.save({}, {})
    assert (tmp_path / METRICS).read_text().count("\n") == 2
    with RunFolder(tmp_path) as folder:
        again = folder.restore()
        assert again is not None
        assert again[2] == [{"event": "x", "n": 1}, {"event": "x", "n": 3}]


def test_without_a_checkpoint_the_metrics_begin_anew(tmp_path: Path) -> None:
    for _ in range(2):
        with RunFolder(tmp_path) as folder:
            folder.restore()
            folder.append({"event": "x"})
    assert (tmp_path / METRICS).read_text().count("\n") == 1


@pytest.mark.parametrize("change", ["shorter", "other", "gone"])
def test_metrics_that_the_checkpoint_does_not_know_are_left_alone(
    tmp_path: Path, change: str
) -> None:
    with RunFolder(tmp_path) as folder:
        folder.restore()
        folder.append({"event": "x", "n": 1})
        folder.save({}, {})
    path = tmp_path / METRICS
    data = path.read_bytes()
    changed = {"shorter": data[:-3], "other": data.replace(b"1", b"7"), "gone": b""}[change]
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(changed)
    with RunFolder(tmp_path) as folder, pytest.raises(RunError, match="not the file that"):
        folder.restore()
    assert (path.read_bytes() if path.exists() else b"") == changed


def test_a_cut_checkpoint_is_an_error_and_stays(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.restore()
        folder.save({"w": torch.ones(100)}, {})
    data = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(data[:-7])
    with RunFolder(tmp_path) as folder, pytest.raises(CheckpointError, match="not a whole"):
        folder.restore()
    assert (tmp_path / CHECKPOINT).read_bytes() == data[:-7]


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / f".{CHECKPOINT}.1234.partial"
    left.write_bytes(b"half")
    with RunFolder(tmp_path):
        assert not left.exists()


def test_the_status_keeps_every_session(tmp_path: Path) -> None:
    for batch in (0, 40):
        with RunFolder(tmp_path) as folder:
            folder.begin_session({"batch": batch})
            folder.set_status("running", batch=batch + 1)
    status = json.loads((tmp_path / STATUS).read_text())
    assert status["sessions"] == [{"batch": 0}, {"batch": 40}]
    assert (status["state"], status["batch"]) == ("running", 41)


def test_a_damaged_status_does_not_stand_in_the_way(tmp_path: Path) -> None:
    (tmp_path / STATUS).write_text("{")
    with RunFolder(tmp_path) as folder:
        folder.begin_session({})
        assert json.loads((tmp_path / STATUS).read_text())["state"] == "running"


def test_a_process_says_what_it_is() -> None:
    said = describe_process(torch.device("cpu"))
    assert said["device"]["type"] == "cpu"
    assert said["versions"]["torch"] == torch.__version__
    assert {"ocar", "python", "numpy", "safetensors"} <= said["versions"].keys()
    json.dumps(said)


def test_the_revision_is_that_of_the_checkout() -> None:
    found = source_revision()
    root = Path(__file__).parents[2]
    asked = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        assert found is None
    else:
        assert found is not None
        assert found["revision"] == asked.stdout.strip()
