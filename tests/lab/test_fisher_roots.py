"""The comparison of roots of the Fisher, on made results."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import ROOT, load_script


def line(root: str, seed: int, *aaa: float) -> dict[str, object]:
    return {"root": root, "seed": seed, "tasks": len(aaa), "aaa": list(aaa)}


def test_runs_are_paired_by_the_seeds_that_all_have(tmp_path: Path) -> None:
    script = load_script("experiments/fisher_roots.py")
    path = tmp_path / "results" / "runs.jsonl"
    lines = [
        line("exact", 0, 0.5, 0.4),
        line("exact", 1, 0.6, 0.5),
        line("exact", 2, 0.9, 0.8),
        line("top(1)", 0, 0.52),
        line("top(1)", 1, 0.60),
        line("sketched(4)", 0, 0.5, 0.4),
    ]
    script.keep({script.key(one): one for one in lines}, path)
    again = line("sketched(4)", 1, 0.5, 0.4)
    script.keep({script.key(again): again}, path)
    assert script.compare(1, path) == [
        "| root | AAA, 2 seeds | difference to exact, 95 % |",
        "|---|---|---|",
        "| `top(1)` | 56.0 | +1.00 ± 12.71 |",
        "| `exact` | 55.0 |  |",
        "| `sketched(4)` | 50.0 | -5.00 ± 63.53 |",
    ]
    assert len(script.compare(2, path)) == 4


@pytest.mark.parametrize(
    ("benchmark", "tasks"),
    [("split-cifar100", 20), ("split-cifar100", 10), ("split-mnist", 5), ("split-digits", 5)],
)
def test_the_page_quotes_what_was_kept(benchmark: str, tasks: int) -> None:
    script = load_script("experiments/fisher_roots.py")
    page = (ROOT / "docs/guides/own-model.md").read_text(encoding="utf-8")
    for row in script.compare(tasks, ROOT / script.RESULTS / f"{benchmark}.jsonl")[2:]:
        root, mean, difference = (cell.strip() for cell in row.strip("|").split("|"))
        if tasks == 10:
            assert f"| {root} | {mean} | {difference}".rstrip() in page
        else:
            assert mean in page
        if tasks == 20 or benchmark == "split-digits" or (tasks == 5 and root == "`sketched(1)`"):
            assert difference.lstrip("+") in page


def test_without_a_reference_it_says_what_to_do(tmp_path: Path) -> None:
    script = load_script("experiments/fisher_roots.py")
    with pytest.raises(SystemExit, match="no run of 'exact' over 3 tasks"):
        script.compare(3, tmp_path / "none.jsonl")
