"""``ocar watch`` without a browser: what it answers, what it reads again, what is broken."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import grow, history, served, write_run, write_study
from stored_runs import small

import ocar_lab
from ocar_lab.cli import main
from ocar_lab.report import live
from ocar_lab.report.live import Watcher
from ocar_lab.report.sections import make_report
from ocar_lab.report.single_runs import describe_run, flat_settings
from ocar_lab.report.studies import read_part
from ocar_lab.runs import Run, read_run
from ocar_lab.runs.folder import CONFIG, METRICS, STATUS
from ocar_lab.runs.studies import JOURNAL, LEAST, STUDY

pytest.importorskip("jinja2", reason="Jinja2 is not installed")


def made(folder: Path, lengths: Sequence[int] = (6, 6), **values: Any) -> Run:
    return write_run(folder, history(np.random.default_rng(0), lengths), **values)


def set_status(run: Run, **values: Any) -> None:
    own = {"state": "running", "pid": os.getpid(), "host": platform.node()}
    (run.path / STATUS).write_text(json.dumps(own | values), encoding="utf-8")


def ask(port: int, path: str, **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET", path, headers=names)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_content_is_sent_again_only_if_it_has_changed(tmp_path: Path) -> None:
    run = made(tmp_path, finished=False)
    events = history(np.random.default_rng(1), (6, 6, 6))
    with served(tmp_path) as port:
        answer, body = ask(port, "/data")
        tag = answer.headers["ETag"]
        assert answer.status == 200
        assert len(json.loads(body)["data"]["sections"][0]["runs"][0]["line"]["x"]) == 12
        answer, body = ask(port, "/data", If_None_Match=tag)
        assert (answer.status, body) == (304, b"")
        grow(run, events[12:])
        answer, body = ask(port, "/data", If_None_Match=tag)
        assert answer.status == 200
        assert answer.headers["ETag"] != tag
        assert len(json.loads(body)["data"]["sections"][0]["runs"][0]["line"]["x"]) == 18


def test_the_page_is_the_report_with_the_tag_of_its_content(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    made(tmp_path)
    with served(tmp_path) as port:
        answer, body = ask(port, "/")
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        tag, _ = ask(port, "/data")
        escaped = tag.headers["ETag"].replace('"', "&#34;")
        assert f'<html lang="en" data-tag="{escaped}">' in body.decode()


def test_other_paths_and_other_hosts_get_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as port:
        assert ask(port, "/../secret")[0].status == 404
        assert ask(port, "/data", Host="evil.example")[0].status == 403
        assert ask(port, "/data", Host=f"localhost:{port}")[0].status == 200


def test_only_what_has_changed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [made(tmp_path, seed=seed, finished=False) for seed in range(3)]
    read: list[Path] = []
    monkeypatch.setattr(live, "read_run", lambda path: (read.append(path), read_run(path))[1])
    watcher = Watcher([tmp_path])
    first = watcher.look()
    assert len(read) == 3
    assert watcher.look() is first
    assert len(read) == 3
    grow(runs[1], history(np.random.default_rng(1), (6, 6, 2))[12:])
    assert watcher.look().tag != first.tag
    assert read[3:] == [runs[1].path]


def test_a_process_that_ends_without_a_word_is_noticed(tmp_path: Path) -> None:
    run = made(tmp_path, finished=False)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        set_status(run, pid=process.pid, batches=24)
        watcher = Watcher([tmp_path])
        first = watcher.look()
        assert "1 running" in first.rendered.content
        assert watcher.look() is first
        process.communicate(b"\n")
    assert "1 killed" in watcher.look().rendered.content


def test_a_folder_may_come_later_and_a_run_may_go(tmp_path: Path) -> None:
    watcher = Watcher([tmp_path / "runs"])
    assert "There are no runs yet." in watcher.look().rendered.content
    run = made(tmp_path / "runs")
    assert "1 run: 1 finished." in watcher.look().rendered.content
    (run.path / CONFIG).unlink()
    (run.path / METRICS).unlink()
    assert "There are no runs yet." in watcher.look().rendered.content


def test_what_is_broken_is_listed_and_hides_nothing(tmp_path: Path) -> None:
    made(tmp_path / "fine")
    runs = {name: made(tmp_path / name) for name in ("config", "line", "order", "none", "cut")}
    (runs["config"].path / CONFIG).write_text("{", encoding="utf-8")
    lines = (runs["line"].path / METRICS).read_bytes().splitlines(keepends=True)
    (runs["line"].path / METRICS).write_bytes(b"".join([lines[0], b"rubbish\n", *lines[1:]]))
    text = (runs["order"].path / METRICS).read_text(encoding="utf-8")
    (runs["order"].path / METRICS).write_text(text.replace('"task": 1', '"task": -7'), "utf-8")
    (runs["none"].path / CONFIG).unlink()
    with (runs["cut"].path / METRICS).open("r+b") as file:  # as its process is writing
        file.truncate(len(b"".join(lines[:5])) + 7)
    study = tmp_path / "study"
    write_study(study, {"lr": {"low": 0.1, "high": 1.0}}, [({"lr": 0.2}, 0.5)])
    (study / JOURNAL).write_text('{"op_code": 0}\n', encoding="utf-8")
    answer = Watcher([tmp_path]).look()
    for path in (runs["config"].path, runs["line"].path, runs["none"].path, study):
        assert answer.rendered.content.count(f'<p class="note">{path}') == 1, path
    assert str(runs["order"].path) in answer.rendered.content
    shown = [run["key"] for run in json.loads(answer.rendered.data)["sections"][0]["runs"]]
    assert {f"{tmp_path}/fine/split-digits/er/seed-0 0", f"{runs['cut'].path} 0"} <= set(shown)


def test_a_run_says_how_far_it_is_and_how_long_it_will_take(tmp_path: Path) -> None:
    run = made(tmp_path, (20, 30), finished=False)
    session = {"time": "2026-01-01T00:00:00+00:00", "batch": 10}
    set_status(run, batches=90, sessions=[session])
    os.utime(run.path / METRICS, (1767225600 + 80, 1767225600 + 80))  # 80 s after the session began
    shown = describe_run(read_run(run.path), method=0, line=None)
    assert (shown.state, shown.done, shown.batches) == ("running", 50, 90)
    assert shown.left == pytest.approx(80 / 40 * 40)  # 40 batches in 80 s, and 40 to come
    set_status(run, batches="many", error=["x"], state="failed")
    shown = describe_run(read_run(run.path), method=0, line=None)
    assert (shown.state, shown.batches, shown.left) == ("failed", 0, None)


def test_a_real_run_writes_how_many_batches_it_has(tmp_path: Path) -> None:
    run = ocar_lab.run(small(probe=False), out=tmp_path)
    assert run.status["batches"] == run.columns.index[-1] + 1


def test_settings_have_one_name_each() -> None:
    config = {
        "method": "ocar",
        "settings": {"lr": 0.1, "memory": {"kind": "reservoir", "size": 100}},
        "transform": None,
    }
    assert flat_settings(config) == {
        "method": "ocar",
        "lr": "0.1",
        "memory.kind": "reservoir",
        "memory.size": "100",
    }


def test_the_places_of_trials_are_those_of_their_settings(tmp_path: Path) -> None:
    space = {
        "lr": {"low": 1e-4, "high": 1.0, "log": True},
        "decay": {"low": 0.0, "high": 2.0, "log": False},
        "passes": {"values": [1, 2, 5]},
    }
    trials = [
        ({"lr": 1e-2, "decay": 0.5, "passes": 5}, 0.7),
        ({"lr": 1.0, "decay": 2.0, "passes": 1}, 0.5),
        ({"lr": 1e-4, "decay": 0.0, "passes": 2}, 0.9),
    ]
    write_study(tmp_path, space, trials)
    part = read_part(tmp_path)
    assert [axis.name for axis in part.axes] == ["lr", "decay", "passes", "validation accuracy"]
    assert [axis.places for axis in part.axes] == [  # best first: trials 2, 0, 1
        (0.0, 0.5, 1.0),
        (0.0, 0.25, 1.0),
        (0.5, 1.0, 0.0),
        (1.0, 0.5, 0.0),
    ]
    assert part.axes[0].ticks == ((0.0, "0.0001"), (0.5, "0.01"), (1.0, "1"))
    assert part.axes[2].ticks == ((0.0, "1"), (0.5, "2"), (1.0, "5"))
    assert [row[0] for row in part.rows] == ["2", "0", "1"]
    assert part.goodness == (1.0, 0.5, 0.0)
    assert part.note == f"Importances need {LEAST} finished trials; there are 3."
    assert "Best: trial 2 with 90.0 %, lr=0.0001, decay=0, passes=2." in part.about


def test_the_setting_that_decides_is_the_important_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    space = {name: {"low": 0.0, "high": 1.0} for name in ("idle", "strong")}
    drawn = [{name: float(rng.random()) for name in space} for _ in range(60)]
    write_study(tmp_path, space, [(own, 1 - (own["strong"] - 0.3) ** 2) for own in drawn])
    shares = dict(read_part(tmp_path).importance)
    assert sum(shares.values()) == pytest.approx(100, abs=0.2)
    assert shares["strong"] > 80


def test_a_study_is_only_read(tmp_path: Path) -> None:
    write_study(tmp_path, {"lr": {"low": 0.1, "high": 1.0}}, [({"lr": 0.2}, 0.5)])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    read_part(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / JOURNAL).unlink()
    assert read_part(tmp_path).axes == ()
    assert {path.name for path in tmp_path.iterdir()} == {STUDY}


def test_the_report_of_a_folder_of_studies_is_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path / "s", {"lr": {"low": 0.1, "high": 1.0}}, [({"lr": 0.2}, 0.5)])
    assert main(["report", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["studies"][0]["title"] == "split-digits er: search"
    assert document["studies"][0]["axes"][0]["places"] == [pytest.approx(1 / 9, abs=1e-4)]


def test_each_run_has_its_own_curve(tmp_path: Path) -> None:
    runs = [made(tmp_path, seed=seed, lengths=(4, 3 + seed)) for seed in range(2)]
    section = make_report(runs, title="t", created="now").sections[0]
    for run, shown in zip(runs, section.runs, strict=True):
        assert shown.line is not None
        assert shown.line.mean == pytest.approx(100 * run.columns.accuracy(), abs=0.01)
        assert set(shown.line.seeds) == {1}


def test_wrong_calls_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "none")]) == 1
    assert f"There is no folder {tmp_path / 'none'}" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["watch", str(tmp_path), "--port", str(port)]) == 2
    assert f"Cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--port", "99999"]) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_another_host_is_warned_of_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    words = ["watch", str(tmp_path), "--host", "0.0.0.0", "--port", "0"]
    command = [sys.executable, "-m", "ocar_lab", *words]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores Ctrl-C, and so would this.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        port = int(said.partition("http://0.0.0.0:")[2].split()[0])
        assert ask(port, "/data", Host="another.machine")[0].status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 0
    assert "lets other machines read the page" in errors
    assert "Traceback" not in errors


def test_it_starts_without_pytorch(tmp_path: Path) -> None:
    write_study(tmp_path, {"lr": {"low": 0.1, "high": 1.0}}, [({"lr": 0.2}, 0.5)])
    made(tmp_path)
    script = (
        "import sys, pathlib, ocar_lab.cli.watch\n"
        "from ocar_lab.report.live import Watcher\n"
        "Watcher([pathlib.Path(sys.argv[1])]).look()\n"
        "assert 'torch' not in sys.modules and 'optuna' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
