"""What the pages of methods say is what the registry, the presets and the results say."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from docs_pages import ROOT
from kept_files import write_kept

from ocar.methods.presets import PRESETS
from ocar.methods.registry import METHODS
from ocar_lab.published import published
from ocar_lab.runs import Result, read_result, result_files


def row(page: str, title: str, name: str) -> list[str]:
    """The cells of a row in the section called so."""
    section = page.partition(f"# {title}\n")[2]
    line = next(line for line in section.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("name", METHODS)
def test_a_page_has_what_belongs_to_its_method(name: str) -> None:
    from method_pages import method_page
    from tables import value

    results = [read_result(path) for path in result_files(ROOT / "results")]
    page = method_page(name, results)
    assert page.startswith(f"# {name}\n\n{METHODS[name].about}\n")
    kind = METHODS[name].transform or METHODS[name].settings
    docstring = importlib.import_module(kind.__module__).__doc__ or ""
    formulas = [line.strip() for line in docstring.splitlines() if line.startswith("    ")]
    assert formulas, "a method has a formula"
    assert all(formula in page for formula in formulas)
    known = [benchmark for benchmark, methods in PRESETS.items() if name in methods]
    for place, benchmark in enumerate(known):
        for setting, given in PRESETS[benchmark][name].items():
            assert row(page, "Presets", f"`{setting}`")[1 + place] == value(given)


def test_measured_rows_stand_beside_the_papers(tmp_path: Path) -> None:
    from method_pages import method_page

    metrics = {seed: {"acc": 0.30 + 0.01 * seed, "aaa": 0.5, "probe": None} for seed in (0, 1, 2)}
    result = read_result(write_kept(tmp_path, "split-cifar100", "ocar", metrics))
    page = method_page("ocar", [result])
    ours = row(page, "split-cifar100", "ours, 3 seeds")
    assert ours[1:] == ["31.0 ± 1.0", "50.0 ± 0.0", "", "", "A GPU"]
    printed = published("split-cifar100", "ocar")["acc"]
    paper = row(page, "split-cifar100", "paper")
    assert paper[1] == f"{printed.mean:.1f} ± {printed.std:.1f}"
    assert "ours: not yet" in page.partition("### split-tinyimagenet")[2]


def test_a_detail_of_the_authors_code_is_measured_over_the_seeds_of_both(tmp_path: Path) -> None:
    from authors_pages import DETAILS, authors_table

    def result(accs: dict[int, float], **changed: object) -> Result:
        metrics = {seed: {"acc": acc, "aaa": 0.5, "wc_acc": 0.2} for seed, acc in accs.items()}
        return read_result(write_kept(tmp_path, "split-cifar100", "ocar", metrics, changed=changed))

    results = [
        result({0: 0.30, 1: 0.32, 2: 0.9}),
        result({0: 0.29, 1: 0.33}, factor_scale="none"),
        result({0: 0.1}, factor_scale="none", splits="own"),
    ]
    first, *others = authors_table(results).splitlines()[2:]
    # +1 and -1, so that the interval is t · √2 / √2 = 12.7 wide on either side.
    cells = ["2", "+0.0 (-12.7 to +12.7)", "+0.0 (+0.0 to +0.0)", "+0.0 (+0.0 to +0.0)"]
    assert [cell.strip() for cell in first.strip("|").split("|")][2:] == cells
    assert len(others) == len(DETAILS) - 1
    assert all(line.count("not measured") == 3 for line in others)


def test_targets_that_are_missed_are_named() -> None:
    from bench_pages import targets

    entry = {"above": "A", "below": "B", "ratio": 3.0, "note": "MLP, small"}
    target = {"relation": "at most", "value": 2, "met": False}
    both = [{**entry, "target": target}, {**entry, "target": None}]
    document = {"device": {"type": "cpu"}, "threads": 1, "results": both}
    text = targets({"file.json": document})
    assert "Not met: A / B (MLP) on a CPU, 1 thread(s): 3.00, at most 2 wanted." in text
    on_gpu = {**document, "device": {"type": "cuda", "name": "A GPU"}}
    assert "A / B (MLP) on A GPU: 3.00" in targets({"file.json": on_gpu})
    assert "All are met." in targets(
        {"file.json": {**document, "results": [{**entry, "target": {**target, "met": True}}]}}
    )


def test_formulas_are_shown_as_they_are() -> None:
    from docstrings import to_markdown, with_literal_blocks

    text = "Text with w* and ``code`` of :func:`a.b`,\n\n    w ← w* − |x|\n\nmore."
    assert to_markdown(text) == (
        "Text with w\\* and `code` of `a.b`,\n\n```text\nw ← w* − |x|\n```\n\nmore.\n"
    )
    assert with_literal_blocks(["As", "", "    x*", "", "end"]) == (
        ["As", "", "::", "", "    x*", "", "end"]
    )
