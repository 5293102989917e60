"""The page on tables shows what is stored."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from docs_pages import DOCS, ROOT
from PIL import Image

STORED = {path.stem: json.loads(path.read_text()) for path in ROOT.glob("results/tabular/*.json")}


def test_the_picture_is_drawn_from_what_is_stored() -> None:
    from pictures import KEY, checksum
    from tabular_pages import PICTURE, read_numbers

    with Image.open(PICTURE) as picture:
        drawn_from = picture.info[KEY]
    assert drawn_from == checksum(read_numbers()), "call `python docs/_tools/tabular_pages.py`"
    assert PICTURE.stat().st_size < 100_000


def test_all_that_is_stored_is_complete_and_shown() -> None:
    from tabular_pages import OTHERS, REGRESSION, REPLACED

    assert set(STORED) <= {*REPLACED, *OTHERS, *REGRESSION}
    assert not any(found["git"]["changed"] for found in STORED.values())
    assert all(
        len(row["scores"]) == 3 for found in STORED.values() for row in found["rows"].values()
    )


def test_a_table_has_means_and_deviations_and_the_best_in_bold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tabular_pages

    monkeypatch.setattr(tabular_pages, "RESULTS", tmp_path)
    for name, higher in (("sine", "OCAR"), ("etth1", "ER, lr=0.1")):
        scores = {"OCAR": [0.5, 0.5, 0.5], "ER, lr=0.1": [0.4, 0.4, 0.4], higher: [0.8, 0.9, 1.0]}
        rows = {who: {"scores": given} for who, given in scores.items()}
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": rows}))
    _, _, ocar, er = tabular_pages.scores_table(["sine"]).splitlines()
    assert ocar == "| OCAR | **90.0 ± 10.0** |"
    assert er == "| ER, the best of five rates | 40.0 ± 0.0 |"
    _, _, ocar, er = tabular_pages.scores_table(["etth1"]).splitlines()
    assert ocar == "| OCAR | **0.500 ± 0.000** |"
    assert er == "| ER, the best of five rates | 0.900 ± 0.100 |"


@pytest.mark.parametrize("page", ["gallery/tables.md", "guides/which-memory.md"])
def test_numbers_in_the_text_are_stored(page: str) -> None:
    """Every per cent and every error in the text is the mean of a row, rounded."""
    text = (DOCS / page).read_text(encoding="utf-8")
    rows = [row for found in STORED.values() for row in found["rows"].values()]
    means = [statistics.mean(row["scores"]) for row in rows]
    stored = {f"{100 * mean:.1f} %" for mean in means} | {f"{mean:.3f}" for mean in means}
    said = re.findall(r"\d+\.\d %|0\.\d{3}", text)
    assert said
    assert set(said) <= stored


def test_deviations_of_time_series_are_of_samples() -> None:
    from series_pages import series_tables

    stored = json.loads((ROOT / "results" / "gallery" / "series.json").read_text(encoding="utf-8"))
    page = series_tables()
    for about in stored.values():
        for row in about["rows"].values():
            values = [run["mase"] for run in row["runs"]]
            if len(values) > 1:
                assert f"| {np.mean(values):.3f} ± {np.std(values, ddof=1):.3f} |" in page
