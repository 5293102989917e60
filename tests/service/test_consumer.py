"""The example that feeds JSON lines to the service: it resumes, and waits for the service."""

from __future__ import annotations

import io
import json
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripts import call_script, load_script
from service_faults import batch, digest, new_learner, open_service

for package in ("fastapi", "prometheus_client", "uvicorn"):
    pytest.importorskip(package)

from web_client import Client, serving  # noqa: E402

consumer = load_script("examples/serve_consumer.py")


def lines(names: range) -> str:
    samples = [(x, y) for name in names for x, y in zip(*batch(name), strict=True)]
    rows = [{"x": x.flatten().tolist(), "y": int(y)} for x, y in samples]
    return "".join(json.dumps(row) + "\n" for row in rows)


def feed(client: Client, monkeypatch: pytest.MonkeyPatch, *words: Any) -> None:
    url = f"http://127.0.0.1:{client.port}"
    call_script(consumer, monkeypatch, *map(str, words), "--url", url, "--batch", "3")


def test_a_file_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        call_script(consumer, monkeypatch, str(tmp_path / "gone.jsonl"))
    assert f"there is no file {tmp_path / 'gone.jsonl'}\n" in capsys.readouterr().err


def test_it_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some samples.jsonl"
    file.write_text(lines(range(1, 3)), encoding="utf-8")
    monkeypatch.setenv("OCAR_TOKEN", "a-token-that-is-long-enough")
    state = tmp_path / "state"
    with serving(partial(open_service, state), token="a-token-that-is-long-enough") as client:
        feed(client, monkeypatch, file)
        assert capsys.readouterr().out == "3 lines, batch 1\n6 lines, batch 2\n"
        with file.open("a", encoding="utf-8") as more:
            more.write(lines(range(3, 5)))
        feed(client, monkeypatch, file)
        assert capsys.readouterr().out == "9 lines, batch 3\n12 lines, batch 4\n"
        (tmp_path / "some samples.jsonl.position").unlink()
        feed(client, monkeypatch, file)  # all of it again: the keys are known
        assert capsys.readouterr().out.count("which it had") == 4
        service = client.running.service()
    offline = new_learner()
    for name in range(1, 5):
        offline.learn(*batch(name))
    assert digest(service.learner) == digest(offline)


def test_a_service_that_is_not_there_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "PAUSES", (0.01,))
    begin = threading.Event()
    tried = []

    def pause(seconds: float) -> None:
        tried.append(seconds)
        begin.set()
        threading.Event().wait(seconds)

    monkeypatch.setattr(consumer, "time", SimpleNamespace(sleep=pause))

    def opener() -> Any:
        begin.wait()  # until the first batch was refused
        return open_service(tmp_path)

    monkeypatch.setattr(sys, "stdin", io.StringIO(lines(range(1, 4))))
    with serving(opener, wait=False) as client:
        feed(client, monkeypatch, "-")
        assert client.get("/status")[1]["accepted"] == 3
    assert tried


def test_a_line_that_is_no_sample_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text(lines(range(1, 2)) + '{"x": [1]}\n', encoding="utf-8")
    with serving(partial(open_service, tmp_path / "state")) as client:
        with pytest.raises(SystemExit, match="Line 4 is not"):
            feed(client, monkeypatch, file)
        file.write_text('{"x": [1], "y": 2}\n', encoding="utf-8")
        (tmp_path / "file.position").unlink()
        with pytest.raises(SystemExit, match=r"422: .*samples of shape"):
            feed(client, monkeypatch, file)
