"""The guide to reports names what a report has; the README's picture and speed are the stored."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from docs_pages import DOCS, ROOT, without_blocks, written_pages
from made_runs import history, write_run
from PIL import Image

from ocar_lab.cli import main
from ocar_lab.cli.paper import NAMES as PAPER

TABLES = ("table1", "clear", "times", "check")


def first_cells(title: str) -> list[str]:
    """What stands in the first column of the table below a heading of the guide."""
    text = (DOCS / "guides" / "reading-a-report.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [row.split("|")[1].strip() for row in rows[1:]]


def test_the_guide_names_the_figures_and_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        events = history(np.random.default_rng(seed), (5, 5, 5))
        reported = [{"tau": 0.1, "replay_weight": 2.0} for _ in events]
        write_run(tmp_path, events, label="ocar", seed=seed, reported=reported)
    assert main(["report", str(tmp_path), "--json"]) == 0
    (section,) = json.loads(capsys.readouterr().out)["sections"]
    titles = {figure["title"] for figure in section["figures"]} | {"Every task over time"}
    assert set(first_cells("The figures")) == titles
    columns = {name for table in section["tables"] for name in table["header"]}
    named = {name for cell in first_cells("The tables") for name in cell.split(", ")}
    assert named - {"Probed"} <= columns, "of made runs, which have no probe"


def test_the_guide_names_every_figure_of_the_paper() -> None:
    named = [cell.strip("`").split()[-1] for cell in first_cells("The paper's figures")]
    figures = [name for name in PAPER if name not in TABLES]
    assert sorted(named) == sorted(figures)


@pytest.mark.parametrize("page", [*written_pages(), ROOT / "results/figures/README.md"])
def test_a_table_ends_before_the_text_below_it(page: Path) -> None:
    """Markdown takes a line of text directly below a table for one more row."""
    lines = without_blocks(page.read_text(encoding="utf-8")).splitlines()
    begins = ("|", "#", "- ", "<", ">")  # a row, or a block that ends the table
    below = [b for a, b in itertools.pairwise(lines) if a.startswith("|")]
    assert [line for line in below if line and not line.startswith(begins)] == []


def test_the_first_picture_is_drawn_from_what_is_stored() -> None:
    from pictures import KEY, checksum
    from readme_picture import PICTURE, falls, read_numbers

    numbers = read_numbers()
    with Image.open(PICTURE) as picture:
        drawn_from = picture.info[KEY]
    assert drawn_from == checksum(numbers), "call `python docs/_tools/readme_picture.py`"
    er, ocar = (falls(numbers["split-mnist"][method]) for method in ("er", "ocar"))
    assert all(a > b for a, b in zip(er, ocar, strict=True))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"ER loses {100 * er[0]:.0f} points" in readme


def test_falls_are_from_a_boundary_to_the_lowest_before_the_next() -> None:
    from readme_picture import falls

    curve = {"first": [0.0, 0.9, 0.4, 0.6, 0.7, 0.5], "boundaries": [1, 3, 5]}
    assert falls(curve) == pytest.approx([0.5, 0.1])


def test_the_whole_runs_in_the_readme_and_on_the_page_are_those_measured() -> None:
    speed = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Speed\n")[2]
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    path = ROOT / "results" / "bench" / "h200-runs.json"
    er, ocar, five, *older = json.loads(path.read_text(encoding="utf-8"))["runs"]
    text, memory = " ".join(speed.split()), f"{five['memory_mib'] / 1024:.1f} GiB"
    assert f"takes {er['run_s']} s with ER and {ocar['run_s']} s with OCAR" in text
    assert f"({er['wall_s']:.0f} s and {ocar['wall_s']:.0f} s with Python's start and end)" in text
    assert f"at once, with the probe, {five['run_s']} s in {memory}" in text
    for run in (er, ocar, five, *older):
        seconds = (run["wall_s"], run["run_s"], run["train_s"])
        row = " | ".join([*map(str, seconds), f"{run['memory_mib'] / 1024:.1f} GiB"])
        assert f"| {row} |" in page


def test_the_speed_in_the_readme_is_what_was_measured() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    speed = readme.partition("\n## Speed\n")[2].partition("\n## ")[0]
    path = ROOT / "results" / "bench" / "cpu-1-thread.json"
    measured = json.loads(path.read_text(encoding="utf-8"))
    assert measured["threads"] == 1
    assert f"`OMP_NUM_THREADS=1 {measured['command']}`" in speed
    assert f"({path.relative_to(ROOT)})" in speed
    entries = [entry for entry in measured["results"] if entry["kind"] == "ratio"]
    ratios = {entry["name"]: f"{entry['ratio']:.2f}" for entry in entries}
    names = ("step, 100 classes", "more classes", "nngeometry", "mlp, OCAR")
    assert re.findall(r"(\d+\.\d+) times", speed) == [ratios[name] for name in names]
