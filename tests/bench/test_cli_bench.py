"""``python -m benchmarks``: JSON of a fixed form, a table for people, a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import SCHEMA, Breakdown, Part, Ratio, Setup, Skipped, Target, document
from benchmarks.__main__ import main, print_results, time_text

Captured = pytest.CaptureFixture[str]

RATIO = Ratio(
    name="one thing",
    above="ours",
    below="theirs",
    ratio=2 / 3,
    smallest=0.5,
    largest=0.75,
    time_above=0.02,
    time_below=0.03,
    turns=3,
    note="a note",
    target=Target(relation="at most", value=0.5),
)
PARTS = Breakdown(
    name="a whole",
    parts=(Part(name="large", amount=3.0, share=0.75), Part(name="small", amount=1.0, share=0.25)),
    total=4.0,
    unit="s",
)
SKIPPED = Skipped(name="another thing", reason="not installed: pip install it")


def test_the_form_of_the_json() -> None:
    setup = Setup.quick(torch.device("cpu"))
    said = document([RATIO, PARTS, SKIPPED], setup=setup, command="python -m benchmarks --json")
    assert list(said) == [
        "schema",
        "command",
        "time",
        "device",
        "cores",
        "threads",
        "versions",
        "git",
        "setup",
        "results",
    ]
    assert said["schema"] == SCHEMA == 1
    assert said["command"] == "python -m benchmarks --json"
    assert {"ocar", "python", "torch"} <= set(said["versions"])
    assert said["device"]["type"] == "cpu"
    assert said["results"] == [
        {
            "kind": "ratio",
            "name": "one thing",
            "above": "ours",
            "below": "theirs",
            "ratio": 0.6667,
            "smallest": 0.5,
            "largest": 0.75,
            "time_above": 0.02,
            "time_below": 0.03,
            "turns": 3,
            "unit": "s a stream batch",
            "note": "a note",
            "target": {"relation": "at most", "value": 0.5, "met": False},
        },
        {
            "kind": "breakdown",
            "name": "a whole",
            "parts": [
                {"name": "large", "amount": 3.0, "share": 0.75},
                {"name": "small", "amount": 1.0, "share": 0.25},
            ],
            "total": 4.0,
            "unit": "s",
            "note": "",
        },
        {"kind": "skipped", "name": "another thing", "reason": "not installed: pip install it"},
    ]
    assert json.loads(json.dumps(said)) == said


def test_the_table_for_people(capsys: Captured) -> None:
    print_results([RATIO, PARTS, SKIPPED])
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("one thing"))
    for cell in ("ours / theirs", "0.67", "0.50 to 0.75", "20 ms / 30 ms", "at most 0.5: no"):
        assert cell in row
    assert "75.0 %" in text
    assert "a note" in text
    assert "Not measured: another thing: not installed: pip install it" in text
    assert "\x1b" not in text


def test_times_for_people() -> None:
    assert time_text(0.01234) == "12.3 ms"
    assert time_text(12.34) == "12.3 s"


def test_json_is_printed_and_saved(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "new" / "bench.json"
    call = ["--quick", "--only", "mlp", "recorded", "--device", "cpu"]
    assert main([*call, "--json", "--save", str(file)]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert file.read_text(encoding="utf-8") == captured.out
    assert said["command"].startswith(
        "python -m benchmarks --quick --only mlp recorded --device cpu"
    )
    assert [result["name"] for result in said["results"]][:2] == ["recorded", "mlp, the floor"]
    assert "Measuring mlp: " in captured.err


def test_a_table_is_printed(capsys: Captured) -> None:
    assert main(["--quick", "--only", "mlp", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "ER / a bare PyTorch loop" in text
    assert "OCAR / ER" in text


def test_an_unknown_measurement_is_a_wrong_call(capsys: Captured) -> None:
    assert main(["--only", "dance"]) == 2
    assert "Unknown measurement 'dance'. There are steps" in capsys.readouterr().err
