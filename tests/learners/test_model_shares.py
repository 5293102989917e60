"""Which share of the parameters of known architectures has curvature, as the documentation says."""

from __future__ import annotations

import json

import pytest
from scripts import ROOT, load_script

ZOO = load_script("experiments/model_zoo.py")
STORED = json.loads((ROOT / ZOO.RESULT).read_text())["models"]
CASES = {(library, name): make for library, name, make in ZOO.cases()}
MOST = ("resnet", "convnext", "vit", "bert")
"""Families of which at least 90 % must have curvature."""


def test_all_architectures_are_stored() -> None:
    assert {(row["library"], row["name"]) for row in STORED} == set(CASES)
    assert len(CASES) >= 30


@pytest.mark.parametrize("family", MOST)
def test_nearly_all_parameters_of_known_families_have_curvature(family: str) -> None:
    rows = [row for row in STORED if row["name"].lower().startswith(family)]
    assert rows
    assert all(row["share"] >= 0.9 for row in rows)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_stored_share_is_measured_again(case: tuple[str, str]) -> None:
    library, _ = case
    if library != "ocar":
        pytest.importorskip(library)
    stored = next(row for row in STORED if (row["library"], row["name"]) == case)
    found = ZOO.measure(CASES[case])
    assert {key: stored[key] for key in found} == found
