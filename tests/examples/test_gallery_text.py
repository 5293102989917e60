"""The examples with sentences, on a small part of CLINC150 and on a made-up one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT, call_script, load_script

LINE = re.compile(
    r" *(\d+) intents, accuracy ([\d.]+); out of scope: AUROC ([\d.]+), FPR at 95 % TPR ([\d.]+)"
)


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CLINC150 of 150 intents with a word of their own, which sentences out of scope lack."""
    domains = {f"d{d}": [f"intent{15 * d + i}" for i in range(15)] for d in range(10)}
    intents = [intent for mine in domains.values() for intent in mine]
    outside = [[f"tell me of number {i}", "oos"] for i in range(20)]
    data: dict[str, Any] = dict.fromkeys(("oos_train", "oos_val", "oos_test"), outside)
    for part, each in (("train", 20), ("val", 2), ("test", 4)):
        data[part] = [[f"{part} {n} please {i}", i] for i in intents for n in range(each)]
    (tmp_path / "CLINC150").mkdir()
    (tmp_path / "CLINC150/data_full.json").write_text(json.dumps(data))
    (tmp_path / "CLINC150/domains.json").write_text(json.dumps(domains))
    monkeypatch.setenv("OCAR_DATA", str(tmp_path))


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    call_script(load_script("examples/gallery_text.py"), monkeypatch, *words)
    matches = [LINE.fullmatch(line) for line in capsys.readouterr().out.splitlines()]
    assert matches
    assert all(matches)
    return [tuple(map(float, match.groups())) for match in matches if match is not None]


@pytest.mark.usefixtures("made_up")
def test_tokens(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(monkeypatch, capsys, "--benchmark", "clinc150-tokens", "--limit", "32")
    domain, end = found  # a domain has 30 batches
    assert domain[0] == 15
    assert domain[1] > 0.5
    assert domain[2] > 0.6
    assert end[0] > 15


@pytest.mark.data
def test_static_embeddings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wordllama")
    ((intents, accuracy, auroc, fpr),) = run(monkeypatch, capsys, "--limit", "40")
    assert intents == 5
    assert accuracy > 0.8
    assert auroc > 0.8
    assert fpr < 0.7


def test_the_program_is_short() -> None:
    assert len((ROOT / "examples/gallery_text.py").read_text().splitlines()) <= 60


def test_the_page_has_the_stored_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    module = load_script("experiments/gallery/text.py")
    monkeypatch.chdir(ROOT)
    page = module.PAGE.read_text()
    parts = {part: module.Store(part).data for part in module.BENCHMARKS}
    assert module.with_numbers(page, parts) == page
    assert page.count("OCAR, no settings") == len(parts)
    assert len(module.PAGE.with_suffix(".png").read_bytes()) < 100_000


@pytest.mark.usefixtures("made_up")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about its own next version
def test_lora(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # transformers imports torchvision where it is; its wheels fail beside a CPU build of torch.
    monkeypatch.setitem(sys.modules, "torchvision", None)
    for package in ("transformers", "peft"):
        pytest.importorskip(package)
    call_script(load_script("examples/lora_text.py"), monkeypatch, "--limit", "25")
    learned, result = capsys.readouterr().out.splitlines()
    share, whole = (int(n.replace(",", "")) for n in re.findall(r"[\d,]{2,}", learned))
    assert share < whole / 10
    match = re.fullmatch(r"(\d+) intents, accuracy before learning ([\d.]+)", result)
    assert match is not None
    assert int(match[1]) == 15
    assert float(match[2]) > 0.15  # chance is 1 in 15
