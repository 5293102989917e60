"""The notebook runs from its first cell to its last, and shows what its text says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "docs" / "_tools"
if str(TOOLS) not in sys.path:
    sys.path.append(str(TOOLS))

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

pytestmark = pytest.mark.timeout(900)  # under a minute of one core, which others may want too


@pytest.fixture(scope="module")
def executed() -> Any:
    from story import NOTEBOOK, execute

    return execute(NOTEBOOK)


def printed(notebook: Any, name: str) -> str:
    """What the cell of that name printed."""
    (cell,) = [cell for cell in notebook.cells if cell.id == name]
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def test_it_is_kept_without_outputs() -> None:
    from story import NOTEBOOK

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.long
def test_ocar_is_better_at_any_moment(executed: Any) -> None:
    lines = [re.findall(r"[\d.]+(?=%)", line) for line in printed(executed, "anytime").splitlines()]
    er, ocar = ([float(value) for value in line] for line in lines)
    assert ocar[0] > er[0] + 5
    assert ocar[1] > er[1]


def test_the_settings_do_what_the_text_says(executed: Any) -> None:
    rows = {
        line[:18].strip(): [float(value) for value in re.findall(r"(\d+)%", line[18:])]
        for line in printed(executed, "knobs").splitlines()[1:]
    }
    new, old, worst = range(3)
    assert rows["ER"][worst] < rows["OCAR"][worst], "the stability gap"
    assert rows["α / 8"][old] < rows["OCAR"][old], "not consolidated"
    assert rows["α · 2"][worst] < rows["OCAR"][worst], "the worst moment suffers first"
    assert rows["α · 2"][new] > rows["α · 2"][worst]
    assert rows["τ / 2"][worst] < rows["OCAR"][worst]
    assert rows["τ · 8"][old] < rows["OCAR"][old], "gradient descent is left"


def test_few_directions_have_much_curvature(executed: Any) -> None:
    many, total = re.findall(r"[\d,]+", printed(executed, "spectrum"))[:2]
    assert 0 < int(many) < 0.01 * int(total.replace(",", ""))


def test_its_page_has_every_cell_and_picture(executed: Any, tmp_path: Path) -> None:
    from story import to_markdown

    folder = tmp_path / "story"
    folder.mkdir()
    page = to_markdown(executed, folder)
    for cell in executed.cells[1:]:
        assert cell.source in page
    pictures = re.findall(r"\]\(_generated/(story/[\w-]+\.png)\)", page)
    assert len(pictures) == 5
    assert all((tmp_path / name).stat().st_size > 1000 for name in pictures)


def test_a_cell_that_gives_something_else_is_refused(tmp_path: Path) -> None:
    from story import to_markdown

    output = nbformat.v4.new_output("display_data", data={"text/html": "<b>"})
    cell = nbformat.v4.new_code_cell("x", outputs=[output])
    with pytest.raises(ValueError, match="neither text nor a picture"):
        to_markdown(SimpleNamespace(cells=[cell]), tmp_path)
