"""The figures in the guide to several devices are those that are stored."""

from __future__ import annotations

import json
from typing import Any

from scripts import ROOT

STORED = json.loads((ROOT / "results/ranks/cost.json").read_text())
PAGE = (ROOT / "docs/guides/ranks.md").read_text()


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def mb(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def kind(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("network", "ranks", "inverses"))


def test_the_check_against_gloo_is_the_stored_one() -> None:
    for found in STORED["gloo"]:
        for row in found["networks"]:
            sending, batch = row["sending"], row["batch"]
            times = [sending["measured"], sending["predicted"]]
            times += [batch["measured"], batch["predicted"]]
            cells = [row["network"], found["ranks"], row["messages"], *map(ms, times)]
            assert f"| {' | '.join(map(str, cells))} |\n" in PAGE


def test_the_prediction_is_the_stored_one() -> None:
    rounded = {kind(row): row for row in STORED["predicted"] if row["factor_dtype"] == "float16"}
    for row in STORED["predicted"]:
        if row["factor_dtype"] == "float16":
            continue
        times = [ms(row[name]) for name in ("sending", "computing", "batch")]
        cells = [*kind(row), row["messages"], mb(row["bytes"]), *times, f"{row['share']:.0%}"]
        other = rounded[kind(row)]
        cells += [mb(other["bytes"]), ms(other["sending"])]
        assert f"| {' | '.join(map(str, cells))} |\n" in PAGE
        name = row["network"].partition(",")[0]
        assert f"{ms(row['one'])} for {name}" in PAGE
        assert f"{ms(row['launching'])} for {name}" in PAGE
        assert f"{ms(row['unshared'])}" in PAGE
    assert "with {new} new and {replayed} replayed images".format(**STORED["batch"]) in PAGE
