"""The application of ``ocar serve``: each endpoint, the token, the limits, the metrics."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from service_faults import ITEM, batch, new_learner, open_service
from torch import Tensor, nn

import ocar
from ocar.errors import InputError
from ocar.items import Item
from ocar.service import Service

for package in ("fastapi", "prometheus_client", "uvicorn"):
    pytest.importorskip(package)

from web_client import Client, serving  # noqa: E402

from ocar.integrations.web.limits import Rate  # noqa: E402
from ocar.integrations.web.payload import to_labels, to_samples, to_targets  # noqa: E402

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(partial(open_service, tmp_path)) as found:
        yield found


def flush(client: Client) -> None:
    client.running.service().flush()


def test_probes_and_version_are_answered(client: Client) -> None:
    assert client.get("/health") == (200, {"status": "alive"})
    assert client.get("/ready") == (200, {"status": "ready"})
    status, said = client.get("/version")
    assert (status, said["ocar"], said["torch"]) == (200, ocar.__version__, torch.__version__)
    assert client.raw("GET", "/nowhere")[0] == 404
    assert client.raw("GET", "/learn")[0] == 405


def test_it_learns_and_predicts_as_the_learner_does(client: Client) -> None:
    offline = new_learner()
    for name in (1, 2, 3):
        assert client.learn(name) == (200, {"number": name, "repeated": False})
        offline.learn(*batch(name))
    flush(client)
    x, _ = batch(9)
    logits = offline.predict(x)
    labels = [offline.classes[column] for column in logits.argmax(1).tolist()]
    expected = {"labels": labels, "logits": logits.tolist(), "batches": 3}
    expected["classes"] = list(offline.classes)
    for form in (x.tolist(), x.flatten(1).tolist()):
        assert client.post("/predict", x=form) == (200, expected)
    status, said = client.get("/status")
    assert (status, said["batches"], said["accepted"], said["waiting"]) == (200, 3, 3, 0)


def test_while_it_starts_probes_say_so(tmp_path: Path) -> None:
    begin = threading.Event()

    def opener() -> Service:
        begin.wait()
        return open_service(tmp_path)

    with serving(opener, wait=False) as client:
        assert client.get("/health")[0] == 200
        status, said = client.get("/ready")
        assert (status, "is starting" in said["detail"]) == (503, True)
        assert client.learn(1)[0] == client.post("/predict", x=[])[0] == 503
        assert client.values()["ocar_ready", ()] == 0
        begin.set()
        while client.get("/ready")[0] != 200:
            time.sleep(0.02)
        assert client.learn(1)[0] == 200


def test_a_body_that_is_not_said_to_be_json_is_answered_by_a_line(client: Client) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d sends it
    status, text, _ = client.raw("POST", "/predict", '{"x": [[0]]}', **kind)
    assert status == 422
    assert "with the header Content-Type: application/json" in json.loads(text)["detail"]


def test_learning_that_has_stopped_is_not_ready(client: Client) -> None:
    service = client.running.service()
    service._queue.put((torch.zeros(1, 2), torch.zeros(1)))
    flush(client)
    status, said = client.get("/ready")
    assert (status, said) == (503, {"detail": "Learning has stopped; GET /status says why."})
    assert "InputError" in client.get("/status")[1]["failure"]
    assert client.learn(1)[0] == 503
    assert client.get("/health")[0] == client.post("/predict", x=batch(1)[0].tolist())[0] == 200
    values = client.values()
    assert (values["ocar_failed", ()], values["ocar_ready", ()]) == (1, 0)
    assert client.post("/rollback", batches=0) == (200, {"batches": 0})  # which mends it
    assert client.get("/ready")[0] == client.learn(1)[0] == 200


def test_roll_back_to_a_checkpoint(client: Client) -> None:
    offline, x = new_learner(), batch(9)[0]
    for name in range(1, 6):
        client.learn(name)
        flush(client)
        if name <= 2:
            offline.learn(*batch(name))
    assert client.get("/checkpoints") == (200, {"batches": [0, 2, 4]})
    status, said = client.post("/rollback", batches=3)
    assert (status, "There are: 0, 2, 4." in said["detail"]) == (404, True)
    assert client.post("/rollback", batches="2")[0] == 422
    (newest,) = client.running.service().folder.glob("checkpoint-*4.safetensors")
    newest.write_bytes(newest.read_bytes()[:-1])
    status, said = client.post("/rollback", batches=4)
    assert (status, "not a whole checkpoint" in said["detail"]) == (404, True)
    assert client.get("/ready")[0] == 200  # nothing has changed
    assert client.post("/rollback", batches=2) == (200, {"batches": 2})
    answer = client.post("/predict", x=x.tolist())[1]
    assert (answer["logits"], answer["batches"]) == (offline.predict(x).tolist(), 2)
    assert client.get("/checkpoints")[1] == {"batches": [0, 2]}
    assert client.learn(2)[1] == {"number": 2, "repeated": True}
    assert client.learn(5)[1] == {"number": 3, "repeated": False}  # it was dropped


def test_what_is_forgotten_is_in_no_file(client: Client, tmp_path: Path) -> None:
    x, _ = batch(2)
    for name in range(1, 6):
        client.learn(name)
    flush(client)
    service = client.running.service()
    assert holds(tmp_path, x[1])
    assert holds(tmp_path, x[0])
    before = client.post("/predict", x=x.tolist())[1]
    status, said = client.post("/forget", x=x[1:2].tolist())
    assert (status, said["removed"]) == (200, 1)
    assert "stay as they are" in said["note"]
    assert not holds(tmp_path, x[1])
    assert holds(tmp_path, x[0])
    assert client.post("/predict", x=x.tolist())[1] == before  # the weights stay
    sevens = service.learner.memory.class_counts()[service.learner.classes.index(7)]
    assert client.post("/forget", label=7)[1]["removed"] == sevens > 0
    assert client.get("/checkpoints")[1] == {"batches": [5]}
    assert client.post("/forget", label=7)[1]["removed"] == 0
    for wrong in ({}, {"x": x.tolist(), "label": 1}, {"label": -1}, {"x": [[1, 2]]}):
        assert client.post("/forget", **wrong)[0] == 422
    assert client.learn(2)[1] == {"number": 2, "repeated": True}  # it is not learned again
    assert 7 not in [service.learner.classes[unit] for unit in service.learner.memory.labels]


def holds(folder: Path, sample: Tensor) -> bool:
    """Whether any file holds the bytes of a sample."""
    return any(sample.numpy().tobytes() in path.read_bytes() for path in folder.iterdir())


# --- who may ask, and how much -------------------------------------------------------------------


def test_a_token_is_needed_but_for_probes(tmp_path: Path) -> None:
    with serving(partial(open_service, tmp_path), token=TOKEN) as client:
        paths = ("/status", "/metrics", "/version", "/checkpoints", "/openapi.json", "/nowhere")
        for given in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ü"):
            client.token = given
            for path in paths:
                status, text, headers = client.raw("GET", path)
                assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), (given, text)
            assert client.learn(1)[0] == client.post("/rollback", batches=0)[0] == 401
            assert client.get("/health")[0] == client.get("/ready")[0] == 200
        basic = client.raw("GET", "/status", Authorization=f"Basic {TOKEN}")
        assert basic[0] == 401
        client.token = TOKEN
        assert client.learn(1)[0] == client.get("/status")[0] == client.get("/version")[0] == 200
        assert client.values()["ocar_requests_total", ("/learn", "401")] == 5


def test_a_request_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with serving(partial(open_service, tmp_path), most_bytes=2000) as client:
        assert client.learn(1)[0] == 200
        body = json.dumps({"x": [[0] * 16] * 100, "y": [1] * 100}).encode()
        status, text, _ = client.raw("POST", "/learn", body)
        assert (status, "at most 2000 bytes" in text) == (413, True)
        pieces = (body[i : i + 500] for i in range(0, len(body), 500))  # no length in the header
        status, text, _ = client.raw("POST", "/learn", pieces)
        assert (status, "at most 2000 bytes" in text) == (413, True)
        assert client.get("/status")[1]["accepted"] == 1


def test_a_rate_is_kept_for_each_client() -> None:
    now = [0.0]
    rate = Rate(2, clock=lambda: now[0])
    assert [rate.allows("a") for _ in range(4)] == [True, True, False, False]
    assert rate.allows("b")
    now[0] = 0.5
    assert [rate.allows("a") for _ in range(2)] == [True, False]
    now[0] = 100.0
    assert [rate.allows("a") for _ in range(3)] == [True, True, False]
    slow = Rate(0.1, clock=lambda: now[0])
    assert [slow.allows("a") for _ in range(2)] == [True, False]
    now[0] = 110.0
    assert slow.allows("a")
    assert all(Rate(0).allows("a") for _ in range(100))
    for client in range(10_000):
        rate.allows(str(client))
    assert len(rate._left) <= 4096


def test_too_many_requests_are_told_to_wait(tmp_path: Path) -> None:
    with serving(partial(open_service, tmp_path), rate=0.001) as client:
        assert client.get("/status")[0] == 200
        status, text, headers = client.raw("GET", "/status")
        assert (status, headers["Retry-After"], "0.001 requests" in text) == (429, "1", True)
        assert client.get("/health")[0] == client.get("/ready")[0] == 200
        assert client.raw("GET", "/metrics")[0] == 200


# --- what Prometheus is told ---------------------------------------------------------------------


def test_metrics_say_what_happened(client: Client) -> None:
    offline, right, seen = new_learner(), 0, 0
    for name in range(1, 6):
        client.learn(name)
        x, y = batch(name)
        if offline.classes:
            labels = torch.tensor(offline.classes)[offline.predict(x).argmax(1)]
            right += int((labels == y).sum())
        seen += len(y)
        offline.learn(x, y)
    flush(client)
    client.post("/learn", x=[], y=[])
    client.raw("GET", "/no/such/path")
    values = client.values()
    assert values["ocar_requests_total", ("/learn", "200")] == 5
    assert values["ocar_requests_total", ("/learn", "422")] == 1
    assert values["ocar_requests_total", ("other", "404")] == 1
    assert values["ocar_request_duration_seconds_count", ("/learn",)] == 6
    assert values["ocar_learn_duration_seconds_count", ()] == 5
    assert values["ocar_prequential_accuracy", ()] == right / seen
    assert client.get("/status")[1]["prequential"] == right / seen
    assert values["ocar_learned_batches", ()] == values["ocar_accepted_batches", ()] == 5
    assert (values["ocar_saved_batches", ()], values["ocar_queue_batches", ()]) == (4, 0)
    assert values["ocar_memory_samples", ()] == len(offline.memory)
    assert values["ocar_memory_bytes", ()] == offline.memory.memory_usage()
    assert values["ocar_classes", ()] == len(offline.classes)
    guarded = offline.guarded
    for event in ("not_finite", "out_of_scale", "shortened", "copies"):
        assert values["ocar_guard_events_total", (event,)] == getattr(guarded, event)
    assert values["ocar_ready", ()] == 1
    assert values["process_resident_memory_bytes", ()] > 1e6


@pytest.mark.filterwarnings("ignore::ocar.guard.GuardWarning")
def test_guard_events_are_counted(client: Client) -> None:
    client.learn(1)
    x = torch.full((10, *ITEM), 255, dtype=torch.uint8)  # ten times the same image
    client.post("/learn", x=x.tolist(), y=[1, 2] * 5)
    flush(client)
    assert client.values()["ocar_guard_events_total", ("copies",)] == 1


def test_promtool_finds_no_fault_in_the_metrics(client: Client) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    client.learn(1)
    flush(client)
    text = client.raw("GET", "/metrics")[1]
    ended = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_prometheus_scrapes_it(tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("Prometheus is not installed")
    with serving(partial(open_service, tmp_path / "state"), token=TOKEN) as client:
        client.token = TOKEN
        client.learn(1)
        (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
        job = {
            "job_name": "ocar",
            "scrape_interval": "200ms",
            "scrape_timeout": "200ms",
            "authorization": {"credentials_file": str(tmp_path / "token")},
            "static_configs": [{"targets": [f"127.0.0.1:{client.port}"]}],
        }
        config = tmp_path / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": [job]}), encoding="utf-8")  # JSON is YAML
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            asked = Client(port, client.running)
            query = "/api/v1/query?query=ocar_learned_batches"
            while not (found := result(asked, query)) or found[0]["value"][1] != "1":
                assert process.poll() is None
                time.sleep(0.1)
            query = "/api/v1/query?query=ocar_requests_total%7Bpath%3D%22/learn%22%7D"
            assert result(asked, query)[0]["metric"]["status"] == "200"
        finally:
            process.terminate()
            process.wait()


def result(client: Client, query: str) -> Any:
    try:
        return json.loads(client.raw("GET", query)[1])["data"]["result"]
    except (OSError, ValueError, KeyError):
        return []


# --- other samples -------------------------------------------------------------------------------


def test_a_regression_is_served(tmp_path: Path) -> None:
    def make() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Linear(3, 2)

    def new() -> ocar.Learner:
        return ocar.ER(make(), lr=0.1, memory=20, memory_kind="window", likelihood="gaussian")

    def opener() -> Service:
        item = Item(torch.Size([3]), torch.float32)
        return Service(tmp_path, new=new, load=lambda path: ocar.load(path, make()), item=item)

    x, offline = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)), new()
    y = x[:, :2] * 3
    with serving(opener) as client:
        code, said = client.post("/learn", x=x.tolist(), y=y[:, :1].tolist())
        assert (code, said["detail"]) == (
            422, "y must have 2 numbers for each sample; given shape (4, 1)."
        )  # fmt: skip
        for _ in range(2):
            assert client.post("/learn", x=x.tolist(), y=y.tolist())[0] == 200
            errors = (offline.predict(x) - y).abs()
            offline.learn(x, y)
        flush(client)
        said = client.post("/predict", x=x.tolist())[1]
        assert torch.equal(torch.tensor(said["logits"]), offline.predict(x))
        assert (said["labels"], said["classes"]) == ([], [])
        score = client.values()["ocar_prequential_error", ()]
        assert score > 0
        assert errors.mean() < 2 * score  # the mean over both batches
        for wrong in (y[:, :1], y[:2], torch.full((4, 2), float("nan"))):
            assert client.post("/learn", x=x.tolist(), y=wrong.tolist())[0] == 422


def test_samples_of_several_parts() -> None:
    number, index = Item(torch.Size([2]), torch.float32), Item(torch.Size([1]), torch.int64)
    named = to_samples({"a": [[1, 2.5]], "b": [[3]]}, {"a": number, "b": index}).given
    assert torch.equal(named["a"], torch.tensor([[1, 2.5]]))
    assert torch.equal(named["b"], torch.tensor([[3]]))
    first, second = to_samples([[[1, 2.5]], [[3]]], {"0": number, "1": index}).given
    assert torch.equal(first, named["a"])
    assert torch.equal(second, named["b"])
    flag = Item(torch.Size([2]), torch.bool)
    assert to_samples([[True, False]], flag).tolist() == [[True, False]]


WRONG: dict[str, Callable[[], object]] = {
    "x must be an object of a, b; given an object of a": lambda: to_samples(
        {"a": [[1]]}, {"a": PLAIN, "b": PLAIN}
    ),
    "x must be an object of a; given list": lambda: to_samples([[1]], {"a": PLAIN}),
    "x must be a list of 2 parts": lambda: to_samples([[[1]]], {"0": PLAIN, "1": PLAIN}),
    "must have the same number of samples": lambda: to_samples(
        [[[1]], [[1], [2]]], {"0": PLAIN, "1": PLAIN}
    ),
    "x must hold integers from 0 to 255; given -1 to 3": lambda: to_samples([[-1], [3]], PLAIN),
    "x must hold integers only": lambda: to_samples([[0.5]], PLAIN),
    "x must be nested lists of equal lengths": lambda: to_samples([[1], [1, 2]], PLAIN),
    "x must be a list of samples of shape": lambda: to_samples([[1, 2]], PLAIN),
    "y must be a list of labels": lambda: to_labels([-1]),
    "y must hold smaller integers": lambda: to_labels([10**30]),
    "y must hold smaller numbers": lambda: to_targets([10**400], torch.float32),
    "y must hold integers only": lambda: to_labels([True, 1]),
    "x must be nested lists": lambda: to_samples([1, [2]], PLAIN),
    "y must hold numbers only": lambda: to_targets(["1"], torch.float32),
}
PLAIN = Item(torch.Size([1]), torch.uint8)


def test_texts_take_no_more_memory_than_the_body_has_bytes() -> None:
    """An array of texts would have the longest one's room for each of them: here 1.2 GB."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="x must hold integers only"):
            to_samples(["a" * 3_000, *[""] * 100_000], PLAIN)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_integers_beyond_64_bits_are_numbers() -> None:
    assert to_targets([2**64], torch.float32).tolist() == [[2.0**64]]


@pytest.mark.parametrize("said", WRONG)
def test_numbers_that_do_not_fit_are_said(said: str) -> None:
    with pytest.raises(InputError, match=said):
        WRONG[said]()
