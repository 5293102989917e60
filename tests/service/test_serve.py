"""``ocar serve`` as a process, asked, taught, killed and started again; its service under load."""

from __future__ import annotations

import errno
import http.client
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import ROOT
from torch import Tensor

import ocar
from ocar.datasets import data_root
from ocar.errors import ConfigError, DataError, RunError
from ocar.items import Item
from ocar.service import Refused, Service, offline, opened
from ocar.state import load_state
from ocar_lab.cli import main, serve

for package in ("fastapi", "prometheus_client", "sklearn", "tyro", "uvicorn"):
    pytest.importorskip(package)
sys.path.insert(0, str(ROOT / "examples"))

import serve_load  # noqa: E402

ITEM = (1, 8, 8)


def open_service(folder: Path, **options: int) -> Service:
    checkpoint = folder.parent / f"{folder.name}.safetensors"
    if not checkpoint.exists():
        serve_load.new_learner("digits").save(checkpoint)
    item = Item(torch.Size(ITEM), torch.uint8)
    return opened.open_service(checkpoint, folder, model=serve_load.mlp, item=item, **options)


def batch(seed: int, size: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (size, *ITEM), dtype=torch.uint8, generator=generator)
    return x, torch.arange(size) + seed % 7


def lesson(x: Tensor, y: Tensor) -> dict[str, object]:
    return {"x": x.flatten(1).tolist(), "y": y.tolist()}


def post(server: Any, path: str, content: object) -> tuple[int, Any]:
    return server.ask("POST", path, content)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    server = serve_load.Server(tmp_path, "digits", "--every", "4")
    yield server
    if server.process is not None and server.process.poll() is None:
        server.end(signal.SIGKILL)


BAD = {
    "63 pixels": {"x": [[0] * 63], "y": [1]},
    "a grey level of 256": {"x": [[0] * 63 + [256]], "y": [1]},
    "a fraction": {"x": [[0] * 63 + [0.5]], "y": [1]},
    "no sample": {"x": [], "y": []},
    "samples of different lengths": {"x": [[0] * 64, [0] * 63], "y": [1, 1]},
    "a text": {"x": ["0" * 64], "y": [1]},
    "true and false": {"x": [[True] * 64], "y": [1]},
    "parts": {"x": {"a": [[0] * 64]}, "y": [1]},
    "a label of 2 ** 31": {"x": [[0] * 64], "y": [2**31]},
    "a label that is a fraction": {"x": [[0] * 64], "y": [1.5]},
    "a negative label": {"x": [[0] * 64], "y": [-1]},
    "two labels for one sample": {"x": [[0] * 64], "y": [1, 2]},
    "no label": {"x": [[0] * 64]},
    "not an object": [1],
}


HOSTILE = {
    "NaN": b'{"x": [[%s]], "y": [NaN]}',
    "Infinity": b'{"x": [[%s]], "y": [-Infinity]}',
    "1e400": b'{"x": [[%s]], "y": [1e400]}',
    "NaN as a pixel": b'{"x": [[NaN]], "y": [1]}',
    "a lone surrogate": b'{"x": [[%s]], "y": ["\\ud800"]}',
    "a lone surrogate as a key": b'{"x": [[%s]], "y": [1], "key": "\\ud800"}',
    "a key with a new line": b'{"x": [[%s]], "y": [1], "key": "a\\nb"}',
    "a long key": b'{"x": [[%s]], "y": [1], "key": "' + b"k" * 65 + b'"}',
    "NaN as a number": b'{"x": [[%s]], "y": [1], "number": NaN}',
    "a number of 4,000 digits": b'{"x": [[%s]], "y": [' + b"9" * 4000 + b"]}",
    "a number of 5,000 digits": b'{"x": [[%s]], "y": [' + b"9" * 5000 + b"]}",
    "NaN alone": b"NaN",
    "not UTF-8": b'{"x": "\xff"}',
    "deep": b"[" * 100_000,
    "a surrogate as a name": b'{"\\ud800": [NaN]}',
    "nothing": b"",
}


def check_hostile(server: Any) -> None:
    """What JSON does not know is the client's fault: 400 or 422, and nothing is accepted."""
    pixels = b", ".join([b"0"] * 64)
    for what, body in HOSTILE.items():
        for path, kind in itertools.product(
            ["/learn", "/predict"] if b"%s" not in body else ["/learn"],
            ["application/json", "text/plain"],
        ):
            with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
                connection.request(
                    "POST", path, body.replace(b"%s", pixels), {"Content-Type": kind}
                )
                answer = connection.getresponse()
                said = json.loads(answer.read())
            assert answer.status in (400, 422), (what, path, kind, said)
            assert said["detail"]
    assert server.status()["accepted"] == 0


def test_it_answers_learns_and_goes_on_after_a_restart(server: Any) -> None:
    server.start()
    ask, offline = partial(post, server), serve_load.new_learner("digits")
    x, _ = batch(100, 5)
    question = {"x": x.flatten(1).tolist()}
    status, said = ask("/predict", question)
    assert (status, said["batches"], said["classes"], said["labels"]) == (200, 0, [], [])
    for what, content in BAD.items():
        assert ask("/learn", content)[0] == 422, what
    check_hostile(server)
    for number in range(1, 8):
        own = lesson(*batch(number)) | {"key": f"a-{number}"}
        assert ask("/learn", own) == (200, {"number": number, "repeated": False})
        offline.learn(*batch(number))
    assert ask("/learn", lesson(*batch(8)) | {"number": 7}) == (
        409,
        {"detail": "The next batch is number 8."},
    )
    while server.status()["batches"] != 7:
        time.sleep(0.02)
    for how in (None, signal.SIGTERM, signal.SIGKILL):
        if how is not None:
            server.end(how)
            server.start()
        status, (_, said) = server.status(), ask("/predict", question)
        logits = offline.predict(x)
        assert (status["batches"], status["accepted"], status["failure"]) == (7, 7, "")
        assert status["guard"] == asdict(offline.guarded)
        assert (said["batches"], tuple(said["classes"])) == (7, offline.classes)
        assert said["logits"] == logits.tolist()
        for number in (1, 7):  # a client's own batch, sent again
            own = lesson(*batch(number)) | {"key": f"a-{number}"}
            assert ask("/learn", own) == (200, {"number": number, "repeated": True})
        code, said_so = ask("/learn", lesson(*batch(1)) | {"key": "a-2"})
        assert (code, "came with another batch" in said_so["detail"]) == (422, True)
        assert said["labels"] == [offline.classes[i] for i in logits.argmax(1).tolist()]


@pytest.mark.parametrize(
    ("case", "kills", "seconds"),
    [
        pytest.param("digits", 2, 0.5, marks=pytest.mark.long),
        pytest.param("digits", 10, 5, marks=pytest.mark.sweep),
        pytest.param("cifar100", 2, 5, marks=[pytest.mark.sweep, pytest.mark.data]),
    ],
)
def test_killed_under_load_it_loses_nothing(
    tmp_path: Path, case: str, kills: int, seconds: float
) -> None:
    if case == "cifar100" and not (data_root() / "cifar-100-python").is_dir():
        pytest.skip("CIFAR-100 is not there")
    options = () if case == "digits" else ("--waiting", "4", "--every", "4")
    load = {"seconds": seconds, "clients": 2, "kills": kills, "seed": kills}
    result = serve_load.run(tmp_path, case, *options, **load)
    assert result["errors"] == result["inconsistent answers"] == 0
    assert result["batches learned in the end"] == result["batches acknowledged"] > 0
    assert result["the saved learner is the same"]
    assert result["predictions"] > 0


def test_when_learning_cannot_follow_it_says_when_to_come_back(tmp_path: Path) -> None:
    held = open_service(tmp_path, waiting=2)
    with held.learner.lock:  # the learning waits here
        accepted = held.accept(*batch(1)).number
        while not held._queue.full():  # one may be at the learner already
            accepted = held.accept(*batch(accepted + 1)).number
        with pytest.raises(Refused, match="2 batches are waiting") as refused:
            held.accept(*batch(9))
        assert (accepted, refused.value.status) == (held.journal.last, 429)
    held.close()
    assert held.learner.batches == accepted


def test_a_learner_that_fails_is_said_and_answers_go_on(tmp_path: Path) -> None:
    broken = open_service(tmp_path)
    broken.accept(*batch(1))
    broken._queue.put((torch.zeros(1, 2), torch.zeros(1)))
    broken.flush()
    with pytest.raises(Refused, match="Learning has stopped: InputError: x must hold") as refused:
        broken.accept(*batch(2))
    assert refused.value.status == 503
    assert broken.status()["failure"]
    assert broken.predict(batch(1)[0]).batches == 1
    broken.close()


@pytest.mark.parametrize("method", ["er", "scr", "gdumb"])
def test_a_batch_is_accepted_while_another_is_learned(method: str, tmp_path: Path) -> None:
    """Also of methods whose predictions wait for the learner."""

    def make() -> torch.nn.Module:
        return ocar.make_model("mlp", image_shape=(1, 4, 4), seed=0)

    service = Service(
        tmp_path,
        new=lambda: ocar.make_learner(method, make(), lr=0.05, memory=20),
        load=lambda path: ocar.load(path, make()),
        item=Item(torch.Size([1, 4, 4]), torch.uint8),
    )
    x = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    accepted = threading.Thread(target=service.accept, args=(x, torch.arange(6) % 2))
    with service.learner.lock:
        accepted.start()
        accepted.join(60)
        assert not accepted.is_alive()
    service.close()
    assert service.learner.batches == 1


def test_a_batch_that_cannot_be_learned_is_named_and_left_out(tmp_path: Path) -> None:
    """Statistics of one sample: the model predicts it, and raises when it trains on it."""
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2

    def make() -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

    def new() -> ocar.Learner:
        return ocar.ER(make(), lr=0.1, memory=20, seed=0)

    def start() -> Service:
        item = Item(torch.Size([4]), torch.float32)
        return Service(tmp_path, new=new, load=lambda path: ocar.load(path, make()), item=item)

    service = start()
    with service.learner.lock:  # nothing is learned until both are accepted
        assert service.accept(x[:1], y[:1], key="one").number == 1
        assert service.accept(x, y, key="six").number == 2
    service.flush()
    with pytest.raises(Refused, match="Learning has stopped: ValueError: Expected more than 1"):
        service.accept(x, y)
    service.close()
    with pytest.raises(
        DataError, match=r"Batch 1 in .* cannot be learned: .*: Expected.* --without 1"
    ):
        start()
    with pytest.raises(ConfigError, match=r"leave out: 3\. After the checkpoint there are 1 to 2"):
        offline.repair(tmp_path, without=[3])
    assert offline.repair(tmp_path, without=[1]) == (1, [1])
    again, oracle = start(), new()
    oracle.learn(x, y)
    assert torch.equal(again.predict(x).logits, oracle.predict(x))
    assert again.accept(x, y, key="six") == (1, True)
    assert again.accept(x[:1], y[:1], key="one") == (2, False)
    again.flush()
    assert again.status()["failure"] == ""
    again.close()


def test_files_stay_bounded_and_the_checkpoint_before_the_last_is_enough(tmp_path: Path) -> None:
    first = open_service(tmp_path, every=5, checkpoints=3)
    for number in range(1, 43):
        first.accept(*batch(number))
        while first._queue.qsize() > 3:
            time.sleep(0.005)
    first.close()
    begun = min(int(path.name[12:]) for path in tmp_path.glob("journal-*"))
    assert 42 - begun < 5 + 2 * (3 + 2)
    assert len(first.checkpoints()) == 3
    checkpoint = max(tmp_path.glob("checkpoint-*"))
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    again = open_service(tmp_path, every=5)
    again.close()
    for (name, left), right in zip(
        first.learner.state()[0].items(), again.learner.state()[0].values(), strict=True
    ):
        assert torch.equal(left, right), name


def run(server: Any) -> Any:
    """Its command, to the end."""
    said = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(server.command, env=server.environment, **said)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_start_leaves_the_first_alone_and_half_a_request_does_not_keep_it(
    tmp_path: Path, server: Any
) -> None:
    state = tmp_path / "state"
    server.command += ["--grace", "1"]
    server.start()
    for number in range(1, 6):
        assert post(server, "/learn", lesson(*batch(number)))[0] == 200
    while (status := server.status())["saved"] < 4 or status["batches"] < 5:
        time.sleep(0.02)
    time.sleep(0.2)  # the journal is cut after the checkpoint is there
    before = contents(state)
    same_port = run(server)
    assert (same_port.returncode, "Address already in use" in same_port.stderr) == (2, True)
    ended = run(serve_load.Server(tmp_path, "digits"))
    assert (ended.returncode, ended.stdout) == (1, "")  # it never served
    assert server.process is not None
    assert f"{state} is in use by process {server.process.pid} on " in ended.stderr
    assert "Wait until it ends, or stop it, and start again." in ended.stderr
    assert "Traceback" not in ended.stderr
    shutil.copy(server.checkpoint, tmp_path / "state.safetensors")
    with pytest.raises(RunError, match=f"in use by process {server.process.pid} on"):
        open_service(state)
    assert contents(state) == before
    assert post(server, "/learn", lesson(*batch(6))) == (200, {"number": 6, "repeated": False})
    with socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(b"POST /learn HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        half.sendall(b"Content-Length: 1000\r\n\r\n{")
        time.sleep(0.2)
        server.end(signal.SIGTERM)
    assert load_state(max(state.glob("checkpoint-*")))[1]["batches"] == 6
    assert server.process.returncode == 0


def test_labels_do_not_make_the_model_grow_without_end(tmp_path: Path) -> None:
    small = open_service(tmp_path, classes=10)
    small.accept(*batch(1))  # classes 1 to 3
    before = {path: path.stat().st_size for path in tmp_path.glob("journal-*")}
    with pytest.raises(Refused, match="would be 11 classes; at most 10 are allowed, 3 are") as said:
        small.accept(batch(2, 8)[0], torch.arange(8) + 100)
    assert said.value.status == 422
    assert before == {path: path.stat().st_size for path in tmp_path.glob("journal-*")}
    small.accept(batch(2, 7)[0], torch.arange(7) + 100)
    small.close()
    assert len(small.learner.classes) == 10
    smaller = open_service(tmp_path, classes=5)
    smaller.accept(*batch(1))  # known classes may always come
    smaller.close()


def test_a_checkpoint_that_cannot_be_saved_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = open_service(tmp_path, every=2)

    def fails(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(full.learner, "save", fails)
        for number in range(1, 4):
            full.accept(*batch(number))
            full.flush()
        assert "No space left" in full.status()["unsaved"]
        assert (full.status()["failure"], full.status()["saved"]) == ("", 0)
    full.accept(*batch(4))
    full.flush()
    assert (full.status()["unsaved"], full.status()["saved"]) == ("", 4)
    monkeypatch.setattr(full.learner, "save", fails)
    full.accept(*batch(5))
    with pytest.raises(OSError, match="No space left"):
        full.close()
    monkeypatch.undo()
    again = open_service(tmp_path)  # the lock was released, the journal has it
    assert again.learner.batches == 5
    again.close()


def test_batches_that_the_grace_does_not_allow_are_learned_by_the_next_start(
    tmp_path: Path,
) -> None:
    hurried = open_service(tmp_path)
    with hurried.learner.lock:
        for number in range(1, 4):
            hurried.accept(*batch(number))
        ending = threading.Thread(target=hurried.close, kwargs={"within": 0.0})
        ending.start()
        while not hurried._closed:
            time.sleep(0.01)
    ending.join()
    assert hurried.learner.batches <= 1  # the one that was begun
    again = open_service(tmp_path)
    assert again.learner.batches == 3
    again.close()


def test_a_folder_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    state = tmp_path / "state"
    open_service(state).close()
    checkpoint = tmp_path / "state.safetensors"
    checkpoint.unlink()
    offline = serve_load.new_learner("digits")
    offline.learn(*batch(1))
    offline.save(checkpoint)
    with pytest.raises(ConfigError, match=r"began with another checkpoint than .*--state NEW"):
        open_service(state)
    checkpoint.unlink()
    none = tmp_path / "gone"
    again = opened.open_service(none, state, model=serve_load.mlp, item=Item(ITEM, torch.uint8))
    again.close()  # a folder that has begun needs its checkpoint no more


WRONG = {
    "--model MODULE:FUNCTION is needed": ["gone"],
    "Must be MODULE:FUNCTION": ["gone", "--model", "os"],
    "No module named 'nowhere'": ["gone", "--model", "nowhere:make"],
    "There is no checkpoint": ["gone", "--model", "builtins:dict"],
    "so a token is needed": ["gone", "--model", "builtins:dict", "--host", "0.0.0.0"],
    "Must be at least 1": ["gone", "--model", "builtins:dict", "--every", "0"],
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_call_is_said_in_a_line(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["serve", *WRONG[said], "--port", port]) in (1, 2)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert said in capfd.readouterr().err


def test_answers_are_sent_at_once() -> None:
    with closing(serve._listen("127.0.0.1", 0)) as listening:
        # asyncio sets TCP_NODELAY on connections of this protocol only.
        assert listening.proto == socket.IPPROTO_TCP


def test_a_token_is_read_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCAR_TOKEN", raising=False)
    assert serve.read_token(None) == ""
    monkeypatch.setenv("OCAR_TOKEN", "a-token-of-some-length")
    assert serve.read_token(None) == "a-token-of-some-length"
    file = tmp_path / "token"
    file.write_text("another-token-of-length\n", encoding="utf-8")
    assert serve.read_token(file) == "another-token-of-length"
    for bad in ("", "short", "ü" * 20, "two lines\nof a file"):
        file.write_text(bad, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"is empty|at least 16 printable"):
            serve.read_token(file)
