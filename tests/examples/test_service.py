"""The service: run as a process, asked, taught, killed and started again."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ocar.errors import DataError

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import service  # noqa: E402
import service_load  # noqa: E402
from fastapi import HTTPException  # noqa: E402
from service_journal import Journal  # noqa: E402

ITEM = service.ITEM


def batch(seed: int, size: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (size, *ITEM), dtype=torch.uint8, generator=generator)
    return x, torch.arange(size) + seed % 7


def lesson(x: Tensor, y: Tensor) -> dict[str, object]:
    return {"x": x.flatten(1).tolist(), "y": y.tolist()}


def post(server: service_load.Server, path: str, content: object) -> tuple[int, Any]:
    with closing(service_load.Connection(server.port)) as connection:
        return connection.ask("POST", path, json.dumps(content).encode())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[service_load.Server]:
    server = service_load.Server(tmp_path / "state", "--every", "4")
    yield server
    if server.process is not None and server.process.poll() is None:
        server.end(signal.SIGKILL)


BAD = {
    "63 pixels": {"x": [[0] * 63], "y": [1]},
    "a grey level of 256": {"x": [[0] * 63 + [256]], "y": [1]},
    "a fraction": {"x": [[0] * 63 + [0.5]], "y": [1]},
    "no sample": {"x": [], "y": []},
    "too many samples": {"x": [[0] * 64] * 257, "y": [1] * 257},
    "a negative label": {"x": [[0] * 64], "y": [-1]},
    "two labels for one sample": {"x": [[0] * 64], "y": [1, 2]},
    "no label": {"x": [[0] * 64]},
    "not an object": [1],
}


def test_it_answers_learns_and_goes_on_after_a_restart(server: service_load.Server) -> None:
    server.start()
    ask, offline = partial(post, server), service.new_learner()
    x, _ = batch(100, 5)
    question = {"x": x.flatten(1).tolist()}
    status, said = ask("/predict", question)
    assert (status, said["batches"], said["classes"], said["labels"]) == (200, 0, [], [])
    for what, content in BAD.items():
        assert ask("/learn", content)[0] == 422, what
    for number in range(1, 8):
        assert ask("/learn", lesson(*batch(number))) == (200, {"number": number})
        offline.learn(*batch(number))
    assert ask("/learn", lesson(*batch(8)) | {"number": 7}) == (
        409,
        {"detail": "The next batch is number 8."},
    )
    while server.health()["batches"] != 7:
        time.sleep(0.02)
    for how in (None, signal.SIGTERM, signal.SIGKILL):
        if how is not None:
            server.end(how)
            server.start()
        health, (status, said) = server.health(), ask("/predict", question)
        logits = offline.predict(x)
        assert (health["batches"], health["accepted"], health["failure"]) == (7, 7, "")
        assert health["guard"] == service.asdict(offline.guarded)
        assert (said["batches"], tuple(said["classes"])) == (7, offline.classes)
        assert said["logits"] == logits.tolist()
        assert said["labels"] == [offline.classes[i] for i in logits.argmax(1).tolist()]


@pytest.mark.long
@pytest.mark.parametrize(("kills", "seconds"), [(2, 0.5), (10, 5)])
def test_killed_under_load_it_loses_nothing(tmp_path: Path, kills: int, seconds: float) -> None:
    result = service_load.run(tmp_path, seconds=seconds, clients=2, kills=kills, seed=kills)
    assert result["errors"] == result["inconsistent answers"] == 0
    assert result["batches learned in the end"] == result["batches acknowledged"] > 0
    assert result["the saved learner is the same"]
    assert result["predictions"] > 0


def test_when_learning_cannot_follow_it_says_when_to_come_back(tmp_path: Path) -> None:
    held = service.Service(tmp_path, every=100, waiting=2)
    with held.learner.lock:  # the learning waits here
        accepted = held._accept(*batch(1), None)
        while not held._queue.full():  # one may be at the learner already
            accepted = held._accept(*batch(accepted + 1), None)
        with pytest.raises(HTTPException) as refused:
            held._accept(*batch(9), None)
        assert accepted == held.journal.last
        assert (refused.value.status_code, refused.value.headers) == (429, {"Retry-After": "1"})
    held.close()
    assert held.learner.batches == accepted


def test_a_learner_that_fails_is_said_and_answers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    broken = service.Service(tmp_path, every=100, waiting=8)
    broken._accept(*batch(1), None)
    broken._queue.put((torch.zeros(1, 2), torch.zeros(1)))
    broken._thread.join()
    with pytest.raises(HTTPException) as refused:
        broken._accept(*batch(2), None)
    assert refused.value.status_code == 503
    assert refused.value.detail.startswith("Learning has stopped: InputError: x must hold samples")
    assert broken.health()["failure"]
    assert broken.predict(batch(1)[0]).batches == 1
    broken.close()


def test_files_stay_bounded_and_the_checkpoint_before_the_last_is_enough(tmp_path: Path) -> None:
    first = service.Service(tmp_path, every=5, waiting=64)
    for number in range(1, 43):
        first._accept(*batch(number), None)
        while first._queue.qsize() > 3:
            time.sleep(0.005)
    first.close()
    numbers = [b.number for b in first.journal.batches(after=0)]
    assert numbers[-1] == 42
    assert len(numbers) <= 5 + 2 * (3 + 2)
    checkpoint = tmp_path / "learner.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    again = service.Service(tmp_path, every=5, waiting=64)
    again.close()
    for (name, left), right in zip(
        first.learner.state()[0].items(), again.learner.state()[0].values(), strict=True
    ):
        assert torch.equal(left, right), name


def filled(folder: Path, batches: int) -> Path:
    journal = Journal(folder, item=ITEM, first=1)
    for number in range(1, batches + 1):
        assert journal.append(*batch(number)) == number
    journal.close()
    (path,) = folder.iterdir()
    return path


def test_a_journal_gives_back_what_it_was_given(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    journal = Journal(tmp_path, item=ITEM, first=1)
    assert journal.last == 5
    found = list(journal.batches(after=2))
    assert [b.number for b in found] == [3, 4, 5]
    for number, x, y in found:
        assert torch.equal(x, batch(number)[0])
        assert torch.equal(y, batch(number)[1])
    journal.close()


def test_a_last_record_cut_anywhere_is_dropped_and_written_again(tmp_path: Path) -> None:
    path = filled(tmp_path, 3)
    whole = path.read_bytes()
    for length in range(len(whole) * 2 // 3, len(whole)):
        path.write_bytes(whole[:length])
        journal = Journal(tmp_path, item=ITEM, first=1)
        assert journal.last == 2
        assert journal.append(*batch(3)) == 3
        journal.close()
        assert path.read_bytes() == whole


def test_a_record_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path, 3)
    whole = path.read_bytes()
    for at in range(len(whole) * 2 // 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DataError, match="is damaged at byte"):
            Journal(tmp_path, item=ITEM, first=1)
        assert len(path.read_bytes()) == len(whole), "nothing was cut"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path, item=ITEM, first=1)
    for number in range(1, 7):
        journal.append(*batch(number))
        if number % 2 == 0:
            journal.trim(needed=1)
    journal.close()
    (tmp_path / "journal-000000000003").unlink()
    with pytest.raises(DataError, match="begins with batch 5; 3 was to follow"):
        Journal(tmp_path, item=ITEM, first=1)
    (tmp_path / "journal-000000000001").unlink()
    with pytest.raises(DataError, match="some are missing"):
        service.Service(tmp_path, every=5, waiting=8)


def test_a_journal_forgets_what_is_not_needed(tmp_path: Path) -> None:
    journal = Journal(tmp_path, item=ITEM, first=1)
    for number in range(1, 7):
        journal.append(*batch(number))
        journal.trim(needed=number - 1)
    assert [b.number for b in journal.batches(after=0)] == [5, 6]
    journal.close()
