"""``ocar keep`` and what ``ocar show`` makes of its files: the same table, Markdown, a README."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from kept_files import write_kept
from stored_runs import small

import ocar_lab
from ocar_lab.cli import main
from ocar_lab.cli.show import BEGIN, END
from ocar_lab.cli.tables import markdown_runs
from ocar_lab.runs import Group, Spread, find_runs, result_files
from ocar_lab.runs.find import HOW_TO_RUN
from ocar_lab.runs.folder import METRICS

Captured = pytest.CaptureFixture[str]


def run(out: Path, *seeds: int, **values: object) -> None:
    for seed in seeds:
        ocar_lab.run(small(seed=seed, max_batches=3, probe=False, **values), out=out)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds each of two settings of ER."""
    out = tmp_path_factory.mktemp("runs")
    run(out, 0, 1)
    run(out, 0, 1, settings={"lr": 0.5})
    return out


@pytest.fixture
def results(out: Path, tmp_path: Path, capsys: Captured) -> Path:
    assert main(["keep", str(out), "--to", str(tmp_path / "results")]) == 0
    said = capsys.readouterr().out.splitlines()
    files = result_files(tmp_path / "results")
    assert said == [f"{path}: seeds 0 1" for path in files]
    assert len(files) == 2
    return tmp_path / "results"


def test_results_are_shown_as_their_runs(out: Path, results: Path, capsys: Captured) -> None:
    shown = []
    for folder in (out, results):
        assert main(["show", str(folder)]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    documents = []
    for folder in (out, results):
        assert main(["show", str(folder), "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["groups"] == documents[1]["groups"]
    assert len(documents[1]["runs"]) == 4


def test_a_run_that_is_stored_and_kept_counts_once(
    out: Path, tmp_path: Path, capsys: Captured
) -> None:
    both = tmp_path / "both"
    shutil.copytree(out, both / "runs")
    run(tmp_path / "more", 1, 2)
    assert main(["keep", str(tmp_path / "more"), "--to", str(both)]) == 0
    capsys.readouterr()
    assert main(["show", str(both), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["groups"]
    assert sorted(sorted(group["seeds"]) for group in shown) == [[0, 1], [0, 1, 2]]


def test_what_is_not_finished_is_refused_and_the_rest_kept(
    tmp_path: Path, capsys: Captured
) -> None:
    out, to = tmp_path / "runs", tmp_path / "results"
    run(out, 0)
    ocar_lab.run(small(seed=1, max_batches=3, probe=False), out=out, stop=lambda: True)
    run(out, 2)
    broken = next(r for r in find_runs(out) if r.seed == 2).path / METRICS
    broken.write_text("x\ny\n")
    assert main(["keep", str(out), "--to", str(to)]) == 1
    captured = capsys.readouterr()
    (path,) = result_files(to)
    assert captured.out == f"{path}: seeds 0\n"
    damaged, stopped = captured.err.splitlines()
    assert damaged.startswith(f"ocar: {broken} is damaged: line 1")
    assert "seed-1 is left out: it is not finished but stopped. The same" in stopped
    run(out, 1)
    broken.unlink()
    assert main(["keep", str(next(out.rglob("seed-1"))), "--to", str(to)]) == 0
    assert capsys.readouterr().out == f"{path}: seeds 1, added to 0\n"


def test_one_damaged_file_does_not_hide_the_others(
    out: Path, results: Path, capsys: Captured
) -> None:
    bad, good = result_files(results)
    bad.write_text("{")
    assert main(["show", str(results), "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ocar: {bad} cannot be read")
    assert {Path(row["path"]) for row in json.loads(captured.out)["runs"]} == {good}
    assert main(["keep", str(out), "--to", str(results)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ocar: {bad} cannot be read")
    assert captured.out == f"{good}: seeds 0 1\n"
    assert bad.read_text() == "{"


def test_a_folder_without_runs_has_nothing_to_keep(tmp_path: Path, capsys: Captured) -> None:
    assert main(["keep", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"ocar: There are no runs in {tmp_path}. {HOW_TO_RUN}\n"


def test_markdown_is_a_table_with_the_paper_below_the_method() -> None:
    group = Group(
        benchmark="split-cifar100",
        label="er",
        hash="0123456789",
        changed={"head": "a|b", "lr": 0.0123456789},
        seeds=(0, 1),
        unfinished={},
        metrics={
            "acc": Spread(mean=0.2821, std=0.01249, count=2),
            "wc_acc": Spread(mean=0.125, std=None, count=1),
            "plasticity": Spread(mean=0.5, std=0.1, count=2),
            "seconds": Spread(mean=100.0, std=2.0, count=2),
        },
        devices=("NVIDIA H200",),
    )
    assert markdown_runs([group]) == (
        "**split-cifar100**\n"
        "\n"
        "| method | seeds | Acc | WC-Acc | device |\n"
        "|---|---:|---:|---:|---|\n"
        "| er (head=a\\|b, lr=0.01235) | 2 | 28.2 ± 1.2 | 12.5 | NVIDIA H200 |\n"
        "| paper | | 28.2 ± 1.2 | 12.5 ± 0.6 | |\n"
    )
    part = dataclasses.replace(group, changed={"max_tasks": 1})
    assert markdown_runs([part, group]) == markdown_runs([group])
    alone = markdown_runs([part])
    assert "| er (max_tasks=1) | 2 | 28.2 ± 1.2 |" in alone
    assert "paper" not in alone


def test_rows_of_one_name_have_the_hash_too(tmp_path: Path, capsys: Captured) -> None:
    """The device, for one, is part of the identity and not of the name."""
    paths = [
        write_kept(tmp_path, "split-digits", "er", {0: {"acc": 0.5}}, device=device)
        for device in ("cpu", "cuda")
    ]
    write_kept(tmp_path, "split-digits", "ocar", {0: {"acc": 0.6}})
    assert main(["show", str(tmp_path)]) == 0
    names = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert {path.stem.replace("-", " ") for path in paths} < {*names}
    assert "ocar" in names
    assert main(["report", str(tmp_path), "--json"]) == 0
    (section,) = json.loads(capsys.readouterr().out)["sections"]
    assert {method["name"] for method in section["methods"]} < {*names}


def test_usual_runs_are_of_the_preset_on_the_published_splits(
    tmp_path: Path, capsys: Captured
) -> None:
    """Others stand in for a method that has none."""
    earlier = {"factor_scale": "none", "head_size": "classes"}

    def shown(*changes: dict[str, Any]) -> list[dict[str, Any]]:
        for changed in changes:
            write_kept(tmp_path, "split-cifar100", "ocar", {0: {"acc": 0.3}}, changed=changed)
        assert main(["show", str(tmp_path), "--usual", "--json"]) == 0
        return [group["changed"] for group in json.loads(capsys.readouterr().out)["groups"]]

    assert shown({"lr": 0.1}, {**earlier, "splits": "own"}) == [{**earlier, "splits": "own"}]
    assert shown({"splits": "own"}) == [{"splits": "own"}]
    assert shown(earlier) == [earlier]  # the published splits come first
    assert shown({}) == [{}]


def test_a_document_is_renewed_between_its_marks(results: Path, capsys: Captured) -> None:
    assert main(["show", str(results), "--markdown"]) == 0
    table = capsys.readouterr().out
    assert "| er (lr=0.5, max_tasks=2, max_batches=3) | 2 |" in table
    document = results.parent / "README.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter ± \n", encoding="utf-8")
    call = ["show", str(results), "--into", str(document)]
    assert main(call) == 0
    assert capsys.readouterr().out == f"{document}: tables replaced\n"
    whole = f"before\n{BEGIN}\n\n{table}\n{END}\nafter ± \n"
    assert document.read_text(encoding="utf-8") == whole
    assert main(call) == 0
    assert capsys.readouterr().out == f"{document}: tables unchanged\n"
    result_files(results)[0].write_text("{")
    assert main(call) == 1
    assert "is unchanged: some runs cannot be read" in capsys.readouterr().err
    assert document.read_text(encoding="utf-8") == whole


@pytest.mark.parametrize(
    "text",
    ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{END}\n{BEGIN}\n", f"{BEGIN} x {END}\n"],
)
def test_a_document_without_marks_is_left_as_it_is(
    text: str, results: Path, capsys: Captured
) -> None:
    document = results.parent / "README.md"
    document.write_text(text)
    assert main(["show", str(results), "--into", str(document)]) == 2
    assert f"ocar: {document} has no place for tables: one line" in capsys.readouterr().err
    assert document.read_text() == text


def test_json_and_markdown_are_not_asked_for_at_once(results: Path, capsys: Captured) -> None:
    assert main(["show", str(results), "--json", "--markdown"]) == 2
    assert "Invalid --json with --markdown or --into" in capsys.readouterr().err
    assert main(["show", str(results), "--into", str(results / "nothing.md")]) == 2
    assert capsys.readouterr().err == f"ocar: There is no file {results / 'nothing.md'}.\n"
