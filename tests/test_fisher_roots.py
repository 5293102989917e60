"""The comparison of roots of the Fisher, on made results."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import load_script


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


def test_kept_results_have_what_the_page_quotes() -> None:
    script = load_script("experiments/fisher_roots.py")
    lines = script.read(Path(script.__file__).parents[1] / script.RESULTS / "split-cifar100.jsonl")
    whole = [key for key in lines if key[2] == 20]
    assert {root for root, *_ in whole} >= {"exact", "sketched(4)"}
    for found in lines.values():
        assert len(found["aaa"]) == found["tasks"]
        assert found["aaa"][-1] == pytest.approx(0.5, abs=0.2)
