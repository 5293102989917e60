"""No command passes on what a file says as a command of a terminal, Markdown, HTML or a path."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets.dataset_files import domain_files, write_folder
from made_runs import history, write_run

from ocar_lab.cli import main
from ocar_lab.cli.show import BEGIN, END
from ocar_lab.cli.tables import markdown_runs, markdown_sheets, print_runs, print_table
from ocar_lab.runs import Group, Spread, keep, read_run
from ocar_lab.runs.command import PROTOCOL
from ocar_lab.runs.folder import CONFIG, STATUS
from ocar_lab.runs.results import identity_hash
from ocar_lab.runs.texts import Sheet

Captured = pytest.CaptureFixture[str]

EVIL = (
    "\x1b]0;title\x07\x1b[2J\x9b31m\r\n\u202eforged | row\\| [red]x[/red] :warning: **b** "
    f"<script>run()</script> [click](javascript:x) {END} \x7f\u2028\udcff"
)
"""Escape sequences, a line break, a change of direction, and markup of all kinds."""


def spoil(path: Path, **values: Any) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | values))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two seeds of a configuration whose every text is evil, one of them not finished."""
    root, rng = tmp_path / "runs", np.random.default_rng(0)
    for seed, finished in ((0, True), (1, False)):
        run = write_run(root, history(rng, [4, 4]), seed=seed, finished=finished)
        config = {"benchmark": EVIL, "method": EVIL, EVIL: EVIL, "settings": {"head": EVIL}}
        said = {"label": EVIL, "hash": EVIL, "changed": {EVIL: EVIL, "lr": 0.1}, "config": config}
        said |= {"device": {"type": EVIL, "name": EVIL}, "versions": {EVIL: EVIL}}
        said |= {"command": [EVIL], "git": {"revision": EVIL}, "given": {"method": EVIL}}
        spoil(run.path / CONFIG, **said)
        state = "finished" if finished else EVIL
        spoil(run.path / STATUS, state=state, host=EVIL, error=EVIL)
    return root


def check_printed(captured: Any) -> None:
    for text in (captured.out, captured.err):
        assert text.replace("\n", "").isprintable(), repr(text)


def test_tables_show_codes(folder: Path, capsys: Captured) -> None:
    assert main(["show", str(folder)]) == 0
    captured = capsys.readouterr()
    check_printed(captured)
    assert "\\u001b[2J\\u009b31m\\u000d\\u000a\\u202eforged" in captured.out
    assert "[red]x[/red] :warning:" in captured.out  # rich's own markup is text too
    assert not any(line.startswith("forged") for line in captured.out.splitlines())
    assert main(["compare", str(folder), str(folder)]) == 0
    check_printed(capsys.readouterr())
    assert main(["compare", f"{folder}:nothing", str(folder)]) == 2
    check_printed(capsys.readouterr())


def test_json_has_no_control_characters(folder: Path, capsys: Captured) -> None:
    for command in (["show", str(folder), "--json"], ["report", str(folder), "--json"]):
        assert main(command) == 0
        captured = capsys.readouterr()
        check_printed(captured)
        assert "forged" in json.dumps(json.loads(captured.out))


def cells(line: str) -> int:
    """Cells of a row as GitHub's Markdown counts: a backslash takes the next character with it."""
    return re.sub(r"\\.", "", line).count("|") - 1


def check_markdown(text: str) -> None:
    assert text.replace("\n", "").isprintable()
    assert re.search(r"<(?!br)", text) is None
    assert re.search(r"(?<!\\)[\[\]]", text) is None
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({cells(row) for row in rows}) == 1
    assert all(line == "" or line.startswith(("|", "**", "- ")) for line in text.splitlines())


def test_markdown_has_no_markup_but_ours(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["show", str(folder), "--markdown"]) == 0
    shown = capsys.readouterr().out
    check_markdown(shown)
    assert "&lt;script&gt;" in shown
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    for _ in range(2):  # a forged end of the tables would break the second time
        assert main(["show", str(folder), "--markdown", "--into", str(page)]) == 0
    text = page.read_text()
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert text.endswith(f"{END}\nafter\n")
    sheet = Sheet(title=EVIL, header=(EVIL, "x"), rows=((EVIL, EVIL),), notes=(EVIL,))
    check_markdown(markdown_sheets([sheet]))


def test_a_page_has_no_tags_but_ours(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("jinja2")
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "forged" in page
    assert "<script>run()" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_names_of_folders_are_printed_by_codes(folder: Path, capsys: Captured) -> None:
    bad = folder / "\x1b[2J\nforged"
    bad.mkdir()
    for content in (
        "{",
        "[]",
        '{"config": {}}',
        '{"config": {}, "label": 1, "hash": 2, "seed": "x"}',
    ):
        (bad / CONFIG).write_text(content)
        (bad / STATUS).write_text("{}")
        for command in (
            ["show", str(folder)],
            ["show", str(folder), "--json"],
            ["keep", str(folder)],
        ):
            assert main(command) == 1
            captured = capsys.readouterr()
            check_printed(captured)
            assert "\\u001b[2J\\u000aforged" in captured.err
    assert main(["show", str(bad / "\x1b]0;x\x07")]) == 1
    check_printed(capsys.readouterr())


@pytest.mark.parametrize(("benchmark", "label"), [("..", "er"), ("b", "../../er"), ("/", "er")])
def test_results_are_kept_in_their_folder(
    tmp_path: Path, capsys: Captured, benchmark: str, label: str
) -> None:
    run = write_run(tmp_path / "runs", history(np.random.default_rng(0), [4]))
    config = {"benchmark": benchmark.replace("/", str(tmp_path)), "device": "cpu", **PROTOCOL}
    spoil(
        run.path / CONFIG,
        config=config, label=label, hash=identity_hash(config), threads=1, versions={},
        given={"method": "er", "transform": None, "settings": {}},
    )  # fmt: skip
    before = sorted(tmp_path.rglob("*"))
    assert main(["keep", str(tmp_path / "runs"), "--to", str(tmp_path / "a" / "results")]) == 1
    assert "is no name of a file" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_kept_results_are_read_as_safely(tmp_path: Path, capsys: Captured) -> None:
    run = write_run(tmp_path / "runs", history(np.random.default_rng(0), [4]))
    config = {**read_run(run.path).config, "device": "cpu", "every": 1}
    given = {"method": "er", "transform": None, "settings": {"x": {}}}
    spoil(run.path / CONFIG, config=config, hash=identity_hash(config), given=given, threads=1,
          versions={"a": "1"})  # fmt: skip
    path = keep([read_run(run.path)], tmp_path / "kept").path
    spoil(path, changed={"x": EVIL}, command=EVIL)
    for command in ("show", "report"):
        assert main([command, str(path.parent), "--json"]) == 0
        check_printed(capsys.readouterr())
    assert main(["show", str(path)]) == 0
    check_printed(capsys.readouterr())


def test_names_in_data_sets_are_printed_by_codes(tmp_path: Path, capsys: Captured) -> None:
    write_folder(tmp_path / "PACS", domain_files())
    shutil.copytree(tmp_path / "PACS" / "photo", tmp_path / "PACS" / "\x1b[2Jforged\n")
    (tmp_path / "PACS" / "photo" / "dog" / "\x1b[2J.png").write_bytes(b"no image")
    for command in (["data"], ["data", "verify"], ["data", "--json"]):
        main([*command, "--data-root", str(tmp_path)])
        captured = capsys.readouterr()
        check_printed(captured)
        assert "\\u001b[2Jforged\\u000a" in captured.out.replace("\\\\", "\\")


@pytest.mark.timeout(60)
def test_a_fifo_among_the_images_is_named(tmp_path: Path, capsys: Captured) -> None:
    write_folder(tmp_path / "PACS", domain_files())
    os.mkfifo(tmp_path / "PACS" / "photo" / "dog" / "fifo.png")
    from ocar.datasets import load_domains
    from ocar.errors import DataError

    with pytest.raises(DataError, match=r"Cannot read .*fifo\.png: it is no regular file"):
        load_domains(tmp_path / "PACS", size=4)


def test_presets_and_studies_are_read_as_safely(tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("optuna")
    preset = {"format": "ocar-preset", "version": 1, "benchmark": EVIL, "method": EVIL}
    (tmp_path / "preset.json").write_text(json.dumps(preset | {"settings": {}}))
    assert main(["run", "split-digits", "er", "--preset", str(tmp_path / "preset.json")]) == 2
    check_printed(capsys.readouterr())
    study = tmp_path / "tune" / "split-digits" / "er"
    study.mkdir(parents=True)
    (study / "study.json").write_text(json.dumps({"config": {EVIL: EVIL, "seed": EVIL}}))
    out = ["--out", str(tmp_path / "tune"), "--device", "cpu"]
    assert main(["tune", "split-digits", "er", "--trials", "1", *out]) == 1
    captured = capsys.readouterr()
    check_printed(captured)
    assert "\\u001b[2J" in captured.err


# --- the paper's numbers ---


def group(label: str = "ocar", **changed: Any) -> Group:
    return Group(
        benchmark="split-cifar100",
        label=label,
        hash="0123456789",
        changed=changed,
        seeds=(0,),
        unfinished={},
        metrics={"acc": Spread(mean=0.3, std=None, count=1)},
    )


@pytest.mark.parametrize(
    ("changed", "papers"),
    [
        ({}, True),
        ({"lr": 0.1, "tau_step": 1e-8, "passes": 2}, True),
        *(({"fisher": kind}, True) for kind in ("exact", "sketched(4)")),
        *(({name: True}, True) for name in ("track_norms", "guard")),
        *(({"curvature": kind}, False) for kind in ("foof", "ekfac", {"kind": "Mine"})),
        *(({"fisher": kind}, False) for kind in ("sampled(1)", "sketched(2, independent)")),
        ({"lr": 0.1, "damping_kind": "exact"}, False),
        ({"norm_layers": True}, False),
        ({"memory": 100}, False),
        ({"memory_kind": "reservoir"}, False),
        ({"max_tasks": 2}, False),
        ({"blurry": 0.1}, False),
        ({"every": "task"}, False),
    ],
    ids=str,
)
def test_the_papers_row_is_for_the_papers_method(
    changed: Mapping[str, Any], papers: bool, capsys: Captured
) -> None:
    assert ("paper" in markdown_runs([group(**changed)])) is papers


def test_the_paper_is_left_out_of_every_output(tmp_path: Path, capsys: Captured) -> None:
    run = write_run(
        tmp_path, history(np.random.default_rng(0), [4]), label="ocar", benchmark="split-cifar100"
    )
    for changed, papers in (({}, True), ({"curvature": "foof"}, False)):
        spoil(run.path / CONFIG, changed=changed)
        assert main(["show", str(tmp_path)]) == 0
        assert ("  paper" in capsys.readouterr().out) is papers
        assert main(["show", str(tmp_path), "--json"]) == 0
        assert bool(json.loads(capsys.readouterr().out)["groups"][0]["paper"]) is papers
        assert main(["report", str(tmp_path), "--json"]) == 0
        (section,) = json.loads(capsys.readouterr().out)["sections"]
        assert bool(section["tables"][0]["printed"]) is papers


@pytest.mark.parametrize("width", [24, 60, 80])
def test_a_narrow_terminal_loses_no_number(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    numbers = [f"{10 * number}.5 ± {number}.5" for number in range(12)]
    print_table(["method", *"abcdefghijkl"], [["ocar", *numbers]], numbers=True)
    terminal.seek(0)
    text = re.sub(r"\x1b\[\d*m", "", terminal.read())
    assert all(number in text for number in numbers)
    assert max(map(len, text.splitlines())) <= width


def test_output_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", ascii_only)
    assert main(["show", "--help"]) == 0
    ascii_only.seek(0)
    assert "mean ? sample std" in ascii_only.read()


def test_a_folder_whose_name_is_not_utf8(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / os.fsdecode(b"n\xff")
    run = ["run", "split-digits", "er", "--device", "cpu", "--threads", "1", "--max-batches", "2"]
    run += ["--no-probe", "--every", "task", "--workers", "1", "--out", str(out)]
    assert main(run) == 0
    assert main(run) == 0
    assert "already finished" in capsys.readouterr().err
    assert main(["show", str(out)]) == 0
    assert main(["report", str(out)]) == 0
    assert "n\\udcff" in (out / "report.html").read_text(encoding="utf-8")
    assert main(["keep", str(out), "--to", str(out / "kept")]) == 0
    assert main(["compare", str(out / "kept"), str(out)]) == 0
    check_printed(capsys.readouterr())


def test_ordinary_texts_are_as_they_were(capsys: Captured) -> None:
    print_table(
        ["method", "τ"], [["er (lr=0.1, head=fc)", "28.2 ± 1.2"]], title="split-cifar100: in %"
    )
    title, _, row = capsys.readouterr().out.splitlines()
    assert (title, row) == ("split-cifar100: in %", "er (lr=0.1, head=fc)  28.2 ± 1.2")
    shown = markdown_runs([dataclasses.replace(group("er", lr=0.5), devices=("NVIDIA H200",))])
    assert "| er (lr=0.5) | 1 | 30.0 | NVIDIA H200 |\n" in shown
    print_runs([])
    assert capsys.readouterr().out == ""
