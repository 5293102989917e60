"""Many runs as one table, and the numbers of a stored run against the plainest computation."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from stored_runs import small

import ocar_lab
from ocar.errors import RunError
from ocar.methods.registry import METHODS
from ocar_lab.published import FIRST_TASK_SECONDS, PUBLISHED, published
from ocar_lab.runs import find_runs, groups, read_all, read_run, rows
from ocar_lab.runs.folder import METRICS, STATUS


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        ocar_lab.run(small(seed=seed, probe=False), out=out)
    ocar_lab.run(small(settings={"lr": 0.5}, probe=False), out=out)
    ocar_lab.run(small(seed=9, probe=False), out=out, stop=lambda: True)
    return out


def test_the_numbers_are_those_that_the_lines_give(out: Path) -> None:
    for run in find_runs(out):
        lines = [json.loads(x) for x in (run.path / METRICS).read_text().splitlines()]
        if lines[-1]["event"] != "finished":
            assert run.summary is None
            continue
        *history, result = lines
        assert run.summary is not None
        pooled = [sum(e["correct"]) / sum(e["sizes"]) for e in history]
        assert run.summary.aaa == pytest.approx(sum(pooled) / len(pooled), abs=1e-12)
        assert run.summary.acc == sum(result["correct"]) / sum(result["sizes"])
        first = [e["correct"][0] / e["sizes"][0] for e in history]
        later = [a for a, e in zip(first, history, strict=True) if e["task"] == 1]
        last = history[-1]["correct"][1] / history[-1]["sizes"][1]
        assert run.summary.wc_acc == pytest.approx(last / 2 + min(later) / 2, abs=1e-12)
        ended = [a for a, e in zip(first, history, strict=True) if e["task"] == 0][-1]
        assert run.summary.forgetting == pytest.approx(ended - first[-1], abs=1e-12)
        assert run.summary.plasticity == last


def test_a_copy_of_a_run_counts_once(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out, tmp_path / "copy")
    once, none = read_all(out)
    twice, errors = read_all(out, tmp_path)
    assert none == []
    finished = [run for run in once if run.summary is not None]
    assert [run.path for run in twice if run.summary is not None] == [r.path for r in finished]
    assert sorted(errors) == sorted(
        f"{tmp_path / 'copy' / run.path.relative_to(out)} is left out: {run.path} has the same "
        f"configuration and seed {run.seed}. Move one of them away."
        for run in finished
    )


def test_runs_are_grouped_by_their_settings(out: Path) -> None:
    usual, other = sorted(groups(find_runs(out)), key=lambda group: "lr" in group.changed)
    assert (usual.benchmark, usual.label, usual.seeds) == ("split-digits", "er", (0, 1, 2))
    assert usual.unfinished == {9: "stopped"}
    assert usual.changed == {"max_tasks": 2}
    assert other.changed == {"lr": 0.5, "max_tasks": 2}
    assert (other.seeds, other.unfinished) == ((0,), {})


def test_mean_and_spread_are_over_the_finished_seeds(out: Path) -> None:
    usual = next(group for group in groups(find_runs(out)) if "lr" not in group.changed)
    for name, spread in usual.metrics.items():
        mine = [row for row in rows(find_runs(out)) if row["hash"] == usual.hash]
        values = [row[name] for row in mine if row["state"] == "finished"]
        assert spread.count == len(values) == 3
        assert spread.mean == pytest.approx(np.mean(values), rel=1e-12)
        assert spread.std == pytest.approx(np.std(values, ddof=1), rel=1e-9, abs=1e-12)
    one = next(group for group in groups(find_runs(out)) if "lr" in group.changed)
    assert one.metrics["acc"].std is None
    assert "probe" not in one.metrics  # was not measured: left out, not 0


def test_rows_are_plain(out: Path) -> None:
    table = rows(find_runs(out))
    assert len(table) == 5
    assert json.loads(json.dumps(table)) == table
    assert sorted(row["state"] for row in table) == ["finished"] * 4 + ["stopped"]


def test_a_run_whose_process_is_gone_was_killed(out: Path) -> None:
    path = next(run.path for run in find_runs(out) if run.seed == 9)
    said = json.loads((path / STATUS).read_text())
    (path / STATUS).write_text(json.dumps({**said, "state": "running", "pid": 2**22 + 1}))
    assert read_run(path).state == "killed"
    (path / STATUS).write_text(json.dumps({**said, "state": "running", "pid": os.getpid()}))
    assert read_run(path).state == "running"
    (path / STATUS).write_text(json.dumps(said))


def test_folders_that_hold_no_run(tmp_path: Path) -> None:
    assert find_runs(tmp_path) == []
    (tmp_path / "config.json").write_text("{}")  # of somebody else's
    assert find_runs(tmp_path) == []
    (tmp_path / METRICS).write_text("")
    with pytest.raises(RunError, match="not of a run"):
        find_runs(tmp_path)
    with pytest.raises(RunError, match="no folder"):
        find_runs(tmp_path / "nowhere")


def test_the_published_numbers_are_those_of_the_paper() -> None:
    assert published("split-cifar100", "ocar")["acc"] == (34.9, 0.6)
    assert published("split-cifar100", "er")["wc_acc"] == (12.5, 0.6)
    assert published("split-tinyimagenet", "ocar-ace")["aaa"] == (39.8, 2.0)
    assert published("split-cifar100", "er-iid") == {"acc": (35.3, 1.5), "probe": (45.8, 0.6)}
    assert published("clear", "lpr")["wc_acc"] == (62.6, 0.7)
    assert published("split-digits", "er") == {}
    assert published("split-tinyimagenet", "ocar-der++") == {}
    assert [len(table) for table in PUBLISHED.values()] == [16, 16, 3]


def test_the_published_numbers_go_by_the_names_of_the_methods() -> None:
    named = {name for table in PUBLISHED.values() for name in table} | {*FIRST_TASK_SECONDS}
    assert named - {"er-iid"} <= METHODS.keys()
    spreads = [
        n.std for table in PUBLISHED.values() for row in table.values() for n in row.values()
    ]
    assert min(spreads) > 0
