"""Results: a file says what the run folders say, stands for the same configuration, is checked."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_runs import small

import ocar
import ocar_lab
from ocar.errors import RunError
from ocar_lab.cli import run as run_cli
from ocar_lab.experiment import RunConfig
from ocar_lab.runs import (
    Run,
    find_runs,
    groups,
    keep,
    read_result,
    read_run,
    result_files,
    rows,
)
from ocar_lab.runs.command import PROTOCOL, run_command
from ocar_lab.runs.folder import CONFIG, STATUS
from ocar_lab.runs.results import _one_line, identity_hash


def short(**values: Any) -> RunConfig:
    return small(**{"max_tasks": None, "max_batches": 3, "probe": False, **values})


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of one configuration."""
    out = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        ocar_lab.run(short(seed=seed), out=out)
    return out


@pytest.fixture
def runs(out: Path) -> list[Run]:
    return find_runs(out)


def test_a_file_says_what_the_folders_say(runs: list[Run], tmp_path: Path) -> None:
    written = keep(runs, tmp_path)
    assert written.path == tmp_path / "split-digits" / f"er-{runs[0].hash}.json"
    assert result_files(tmp_path) == [written.path]
    result = read_result(written.path)
    assert result == written
    assert result.seeds == (0, 1, 2)
    for run, kept in zip(runs, result.runs, strict=True):
        said = json.loads((run.path / CONFIG).read_text())
        assert kept.summary == run.summary
        assert kept.config == said["config"]
        assert kept.threads == said["threads"] == 1
        (session,) = kept.sessions
        assert {n: session[n] for n in ("device", "versions", "git")} == {
            n: said[n] for n in ("device", "versions", "git")
        }
        assert shlex.split(session["command"])[1:] == said["command"][1:]
        assert kept.wall_seconds is not None
        assert kept.wall_seconds >= 0
        assert kept.guarded == json.loads((run.path / STATUS).read_text())["guarded"]
        assert kept.guarded is not None
    names = {field.name for field in dataclasses.fields(ocar.events.Summary)}
    for run in json.loads(written.path.read_text())["runs"]:
        assert run["metrics"].keys() == names


def test_a_file_makes_the_same_table_as_its_runs(runs: list[Run], tmp_path: Path) -> None:
    result = keep(runs, tmp_path)
    assert groups(result.runs) == groups(runs)
    assert groups(runs)[0].devices == (runs[0].device,)
    mine = [{**row, "path": ""} for row in rows(result.runs)]
    assert mine == [{**row, "path": ""} for row in rows(runs)]


def test_seeds_of_before_stay_and_the_same_seed_is_replaced(
    runs: list[Run], tmp_path: Path
) -> None:
    keep(runs[:2], tmp_path)
    anew = keep(runs[1:], tmp_path)
    assert anew.seeds == (0, 1, 2)
    assert anew == keep(runs, tmp_path)
    assert anew.command is not None
    assert "--seeds 0 1 2 " in anew.command


def test_the_hash_is_that_of_the_configuration() -> None:
    for config in (short(), short(method="ocar", settings={"classes": (0, 1)}), short(iid=True)):
        stored = json.loads(json.dumps(config.identity()))
        assert identity_hash(stored) == config.hash()


def test_a_run_that_was_interrupted_names_all_its_processes(tmp_path: Path) -> None:
    ocar_lab.run(short(), out=tmp_path, stop=lambda: True)
    run = ocar_lab.run(short(), out=tmp_path)
    (kept,) = keep([run], tmp_path / "results").runs
    assert [session["batch"] for session in kept.sessions] == [0, 1]
    assert kept.wall_seconds is None
    (run.path / STATUS).unlink()
    (kept,) = keep([read_run(run.path)], tmp_path / "results").runs
    assert [session["batch"] for session in kept.sessions] == [0]
    assert kept.device == run.device
    assert kept.wall_seconds is None


@pytest.mark.parametrize(
    "config",
    [
        short(),
        short(iid=True, blurry=0.25, every=2, online=True, probe=True, max_tasks=1),
        short(threads=2, settings={"lr": 1e-05, "head": None, "memory_kind": "reservoir"}),
        short(method="er", transform="ocar", settings={"ema": 0.5, "norm_layers": True}),
        short(
            method="ocar",
            settings={
                "n_new": None,
                "tau": None,
                "classes": (0, 1, 2),
                "fisher": "sketched(2, independent)",
                "track_norms": False,
            },
        ),
        short(method="ocar", settings={"classes": ()}),
        short(method="ocar", defaults=True, settings={"divergence": 1e-3}),
        short(settings={"closed_form_head": True}),
        short(method="ocar-slow", settings={"closed_form_head": False, "standardize": False}),
        short(method="gdumb"),
        short(method="gdumb", every=1),
        short(every="task"),
        short(splits="own"),
        RunConfig(benchmark="split-cifar100", method="er", threads=1),
        RunConfig(benchmark="split-cifar100", method="er", splits="own", threads=1),
    ],
    ids=lambda config: config.hash(),
)
def test_the_command_makes_the_same_configuration(config: RunConfig) -> None:
    identity = json.loads(json.dumps(config.identity()))
    given = {
        "method": config.method,
        "transform": config.transform,
        "settings": config.settings,
        "defaults": config.defaults,
        "splits": config.splits,
    }
    line = run_command(identity, given, seeds=[3, 4], threads=config.threads)
    assert line is not None
    first, second, *rest = shlex.split(line)
    assert (first, second) == ("ocar", "run")
    jobs, _, _ = run_cli.plan(rest)
    assert [job.config.seed for job in jobs] == [3, 4]
    for job in jobs:
        assert job.config.hash() == config.hash()
        assert job.config.label == config.label
        assert job.config.threads == config.threads


def test_the_usual_options_are_those_of_a_configuration() -> None:
    identity = RunConfig(benchmark="split-digits", method="er").identity()
    assert {name: identity[name] for name in PROTOCOL} == PROTOCOL
    told_apart = {"benchmark", "method", "settings", "transform", "device"}
    assert identity.keys() == PROTOCOL.keys() | told_apart


def test_what_is_no_flag_has_no_command() -> None:
    for settings in ({"normalize": {"kind": "Normalize"}}, {"closed_form_head": None}):
        given = {"method": "er", "transform": None, "settings": settings}
        assert run_command(short().identity(), given, seeds=[0]) is None


def test_runs_that_cannot_be_kept(runs: list[Run], tmp_path: Path) -> None:
    stopped = ocar_lab.run(short(seed=9), out=tmp_path, stop=lambda: True)
    with pytest.raises(RunError, match=r"seed-9 is not finished but stopped"):
        keep([stopped], tmp_path / "results")
    with pytest.raises(RunError, match=r"seed-0 is seed 0 of er-\w+ once more"):
        keep([runs[0], runs[0]], tmp_path / "results")
    copy = Path(shutil.copytree(runs[0].path, tmp_path / "copy"))
    said = json.loads((copy / CONFIG).read_text())
    said["config"]["blurry"] = 0.5
    (copy / CONFIG).write_text(json.dumps(said))
    with pytest.raises(RunError, match=r"config.json is damaged: its hash"):
        keep([read_run(copy)], tmp_path / "results")
    del said["device"], said["given"]
    (copy / CONFIG).write_text(json.dumps(said))
    with pytest.raises(RunError, match=r"does not say what made it: device, given"):
        keep([read_run(copy)], tmp_path / "results")
    assert not (tmp_path / "results").exists()


def _other_setting(document: dict[str, Any]) -> None:
    document["config"]["settings"]["lr"] = 1.0


def _other_hash(document: dict[str, Any]) -> None:
    document["hash"] = "0123456789"


def _other_label(document: dict[str, Any]) -> None:
    document["label"] = "ocar"


def _seed_twice(document: dict[str, Any]) -> None:
    document["runs"][1]["seed"] = 0


def _no_runs(document: dict[str, Any]) -> None:
    document["runs"] = []


def _unknown_metric(document: dict[str, Any]) -> None:
    document["runs"][0]["metrics"]["beauty"] = 1.0


def _no_metric(document: dict[str, Any]) -> None:
    del document["runs"][0]["metrics"]["acc"]


def _not_finite(document: dict[str, Any]) -> None:
    document["runs"][0]["metrics"]["acc"] = float("nan")


def _text(document: dict[str, Any]) -> None:
    document["runs"][0]["metrics"]["acc"] = "0.9"


def _no_sessions(document: dict[str, Any]) -> None:
    del document["runs"][0]["sessions"]


def _neither_runs_nor_hash(document: dict[str, Any]) -> None:
    document["runs"] = []
    del document["hash"]


def _newer(document: dict[str, Any]) -> None:
    document["version"] = 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_other_setting, "its configuration is that of er-"),
        (_other_hash, "its configuration is that of er-"),
        (_other_label, "its configuration is that of ocar-"),
        (_seed_twice, r"seeds \(0, 0, 2\)"),
        (_no_runs, r"seeds \(\)"),
        (_neither_runs_nor_hash, "its configuration is that of er-"),
        (_unknown_metric, "unexpected keyword argument 'beauty'"),
        (_no_metric, "'acc'"),
        (_not_finite, "acc is nan"),
        (_text, "TypeError"),
        (_no_sessions, "KeyError: 'sessions'"),
        (_newer, r"is no result: \('ocar-result', 2\). This ocar reads \('ocar-result', 1\)"),
    ],
)
def test_a_file_is_checked(
    change: Callable[[dict[str, Any]], None], message: str, runs: list[Run], tmp_path: Path
) -> None:
    path = keep(runs, tmp_path).path
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(RunError, match=message):
        read_result(path)
    with pytest.raises(RunError, match=message):
        keep(runs, tmp_path)
    assert json.dumps(document) == path.read_text()


def test_a_file_that_is_cut_short(runs: list[Run], tmp_path: Path) -> None:
    path = keep(runs, tmp_path).path
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RunError, match="cannot be read"):
        read_result(path)


def test_other_files_are_no_results(tmp_path: Path) -> None:
    for name in ("search.json", "er-0123.json", "er-0123456789.jsonl", ".er-0123456789.json.1"):
        (tmp_path / name).write_text("{}")
    assert result_files(tmp_path) == []
    with pytest.raises(RunError, match="no folder"):
        result_files(tmp_path / "nowhere")


def test_a_kept_command_names_no_folder() -> None:
    words = ["__main__.py", "run", "split-digits", "er", "--out", "/a b", "--seeds", "0"]
    session = {"command": [*words, "--data-root=/c"], "batch": 0}
    assert _one_line(session) == {
        "command": "ocar run split-digits er --seeds 0",
        "batch": 0,
    }
    assert _one_line({"command": ["own.py", "x"]}) == {"command": "own.py x"}
    session = {"command": ["ocar", "run", "--preset=/a/preset.json", "--seeds", "0"]}
    assert _one_line(session) == {"command": "ocar run --preset preset.json --seeds 0"}
