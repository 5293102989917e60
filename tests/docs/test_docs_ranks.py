"""The figures in the guide to several devices are those that are stored."""

from __future__ import annotations

import json
import re
from typing import Any

from scripts import ROOT

FOLDER = ROOT / "results/ranks"
STORED = json.loads((FOLDER / "cost.json").read_text())
PAGE = (ROOT / "docs/guides/ranks.md").read_text()


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def mb(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def span(values: list[float], digits: int = 0) -> str:
    return f"{min(values) * 100:.{digits}f} to {max(values) * 100:.{digits}f} %"


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
    rows = [row for found in STORED["gloo"] for row in found["networks"]]
    off = [abs(row["sending"]["predicted"] / row["sending"]["measured"] - 1) for row in rows]
    longer = [row["batch"]["measured"] / row["batch"]["predicted"] - 1 for row in rows]
    text = " ".join(PAGE.split())
    assert f"the model was off by {span(off)}" in text
    assert f"Batches took {span(longer)} longer" in text
    for row in STORED["gloo"][0]["networks"]:
        full, rounded = (f"{row[name] / 1e6:.1f} MB" for name in ("bytes", "bytes with float16"))
        assert re.search(f"{rounded}( each)? in place of {full} for", text)


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


def test_what_one_device_pays_is_stored() -> None:
    before, after, now = json.loads((FOLDER / "off.json").read_text())["counted"].values()
    assert all(after[name]["operators"] == own["operators"] for name, own in before.items())
    calls = [(own["calls"][0], after[name]["calls"][0]) for name, own in before.items()]
    more, share = [b - a for a, b in calls], max(b / a for a, b in calls) - 1
    text = " ".join(PAGE.split())
    assert f"{min(more)} to {max(more)} more Python functions, at most {share * 100:.1f} %" in text
    was = {name: own["operators"][0] for name, own in after.items()}
    added = {name: own["operators"][0] - was[name] for name, own in now.items()}
    mlp, resnet = (name for name in was if name.startswith("OCAR"))
    assert (
        f"added {added[mlp]} operators to OCAR's {was[mlp]} on an MLP and {added[resnet]} to its "
        f"{was[resnet]:,} on a ResNet, none to ER's" in text
    )
    assert not any(count for name, count in added.items() if name.startswith("ER"))
    times = json.loads((FOLDER / "one-device-h200.json").read_text())
    runs = [times["before"]["seconds"], *times["after"]["seconds"]]
    for method, verb in (("ER", " took"), ("OCAR", "")):
        first, *later = (
            f"{run['step, 5 classes'][f'{method} at 5 classes'] * 1e3:.3f}" for run in runs
        )
        assert f"a batch of {method}{verb} {' and '.join(later)} ms, before {first} ms" in text


def test_what_16_bits_change_is_stored() -> None:
    found = json.loads((FOLDER / "rounding.json").read_text())["measured"]
    text = " ".join(PAGE.split())
    first, *later = zip(*(row["steps"]["float16"] for row in found), strict=True)
    assert f"first batch changed by {span([*first], 2)}" in text
    assert f"state changed by {span([value for each in later for value in each], 3)}" in text
    for name, words in (("float16", "weights differed by"), ("one process", "order, differed by")):
        assert f"{words} {span([row['weights'][name] for row in found])}" in text
    assert all(abs(row["accuracy"]["float16"] - row["accuracy"]["full"]) < 0.003 for row in found)
    assert not any(skipped for row in found for skipped in row["skipped"].values())
