"""``ocar compare``: paired differences against scipy, and what is said where there are none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from kept_files import kept, write_kept
from scipy import stats

from ocar.errors import RunError
from ocar_lab.cli import main
from ocar_lab.cli.compare import metric_rows
from ocar_lab.runs import Paired, compare
from ocar_lab.runs.find import HOW_TO_RUN
from ocar_lab.runs.paired import Interval
from ocar_lab.runs.table import Spread

Captured = pytest.CaptureFixture[str]

FIRST = {0: 0.50, 1: 0.60, 2: 0.40, 7: 0.99}
SECOND = {2: 0.45, 1: 0.63, 0: 0.56, 9: 0.01}
COMMON = (0, 1, 2)


def by_seed(values: dict[int, float], **more: float) -> dict[int, dict[str, float]]:
    return {seed: {"acc": value, **more} for seed, value in values.items()}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_kept(tmp_path, "split-digits", "er", by_seed(FIRST))
    write_kept(tmp_path, "split-digits", "ocar", by_seed(SECOND, probe=0.9))
    return tmp_path


def test_differences_and_interval_are_those_of_the_paired_t_test(tmp_path: Path) -> None:
    first = kept(tmp_path, "split-digits", "er", by_seed(FIRST, aaa=0.5))
    second = kept(tmp_path, "split-digits", "ocar", by_seed(SECOND))
    result = compare(first, second)
    assert (result.seeds, result.only_first, result.only_second) == (COMMON, (7,), (9,))
    assert result.metrics.keys() == {"acc", "seconds"}  # AAA was measured on one side only
    acc = result.metrics["acc"]
    test = stats.ttest_rel([SECOND[s] for s in COMMON], [FIRST[s] for s in COMMON])
    expected = test.confidence_interval(0.95)
    assert acc.interval == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert acc.difference == pytest.approx((0.06 + 0.03 + 0.05) / 3)
    assert acc.first.mean == pytest.approx(0.5)
    assert acc.second.mean == pytest.approx(0.5 + 0.14 / 3)
    assert acc.first.std == pytest.approx(0.1)
    assert acc.pairs == 3
    assert acc.clear == (test.pvalue < 0.05)
    assert not result.metrics["seconds"].clear


def test_a_metric_that_some_seeds_lack_is_paired_over_the_others(tmp_path: Path) -> None:
    metrics = {0: {"acc": 0.5, "probe": 0.6}, 1: {"acc": 0.7}}
    first = kept(tmp_path, "split-digits", "er", metrics)
    second = kept(tmp_path, "split-digits", "ocar", {**metrics, 0: {"acc": 0.5, "probe": 0.7}})
    probe = compare(first, second).metrics["probe"]
    assert (probe.pairs, probe.interval, probe.clear) == (1, None, False)
    assert probe.difference == pytest.approx(0.1)


def test_what_cannot_be_paired_is_refused(tmp_path: Path) -> None:
    digits = kept(tmp_path, "split-digits", "er", by_seed({0: 0.5, 3: 0.5}))
    others = kept(tmp_path, "split-digits", "ocar", by_seed({1: 0.5}))
    with pytest.raises(RunError, match="the first has 0 3, the second 1"):
        compare(digits, others)
    mnist = kept(tmp_path, "split-mnist", "er", by_seed({0: 0.5}))
    with pytest.raises(RunError, match="of split-digits and split-mnist"):
        compare(digits, mnist)
    published, own = (
        kept(tmp_path, "split-cifar100", "er", by_seed({0: 0.5}), changed=changed)
        for changed in ({}, {"splits": "own"})
    )
    with pytest.raises(RunError, match="have own and published splits"):
        compare(published, own)
    with pytest.raises(RunError, match="Seed 0 is there twice"):
        compare([*digits, *digits], others)


def test_json_is_plain_and_tells_what_was_compared(results: Path, capsys: Captured) -> None:
    file = next(results.rglob("er-*.json"))
    assert main(["compare", str(file), f"{results}:ocar", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["first"]["label"], said["second"]["label"]) == ("er", "ocar")
    assert said["first"]["hash"] == file.stem.removeprefix("er-")
    assert (said["seeds"], said["only_first"], said["only_second"]) == ([0, 1, 2], [7], [9])
    acc = said["metrics"]["acc"]
    low, high = acc["interval"]
    assert (low + high) / 2 == pytest.approx(acc["difference"])
    # 4.302653 is the tabulated 97.5 % quantile of t with two degrees of freedom.
    half = 4.302653 * math.sqrt((0.06**2 + 0.03**2 + 0.05**2 - 0.14**2 / 3) / 2 / 3)
    assert (high - low) / 2 == pytest.approx(half, rel=1e-6)


def test_the_table_is_in_per_cent_and_names_what_is_left_out(
    results: Path, capsys: Captured
) -> None:
    assert main(["compare", f"{results}:er", f"{results}:ocar"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "Acc 50.0 ± 10.0 54.7 ± 9.1 +4.7 +0.9 to +8.5 * 3" in lines
    assert "Left out: seeds 7, which only the first set has." in lines
    assert "Left out: seeds 9, which only the second set has." in lines
    assert "* the interval excludes 0" in lines


def test_words_choose_a_configuration(results: Path, capsys: Captured) -> None:
    other = write_kept(results, "split-digits", "er", by_seed(SECOND), changed={"lr": 0.5})
    digits = other.stem.removeprefix("er-")
    call = ["compare", f"{results}:split-digits:ocar"]
    assert main([*call, f"{results}:{digits[:6]}", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["second"]["changed"] == {"lr": 0.5}
    assert said["metrics"]["acc"]["difference"] == 0
    for word in ("er", "nothing", digits[:3]):
        assert main([*call, f"{results}:{word}"]) == 2
        error = capsys.readouterr().err
        assert f"{results}:{digits} (split-digits er (lr=0.5), {other})" in error
        assert error.count("\n") == 1


def test_a_path_may_have_a_colon(tmp_path: Path, capsys: Captured) -> None:
    odd = tmp_path / "a:er"
    write_kept(odd, "split-digits", "er", by_seed(FIRST))
    write_kept(odd, "split-digits", "ocar", by_seed(SECOND))
    assert main(["compare", f"{odd}:er", f"{odd}:ocar"]) == 0
    assert main(["compare", str(odd), f"{odd}:ocar"]) == 2
    assert f"{odd} matches 2 configurations. Name one: {odd}:" in capsys.readouterr().err


def test_errors_are_a_line(results: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["compare", f"{results}:er", str(tmp_path / "nowhere")]) == 2
    said = capsys.readouterr().err
    assert f"there is no folder {tmp_path / 'nowhere'}. Must be PATH or PATH:WORD" in said
    assert said.endswith(f"{HOW_TO_RUN}\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["compare", str(empty), f"{results}:er"]) == 1
    assert capsys.readouterr().err == f"ocar: There are no runs in {empty}. {HOW_TO_RUN}\n"
    assert main(["compare", str(results)]) == 2
    assert "ocar compare --help" in capsys.readouterr().err


def test_a_damaged_file_does_not_hide_the_others(results: Path, capsys: Captured) -> None:
    bad = results / "split-digits" / "er-0123456789.json"
    bad.write_text("{")
    assert main(["compare", f"{results}:er", f"{results}:ocar"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ocar: {bad} cannot be read")
    assert captured.err.count("\n") == 1
    assert "Acc" in captured.out


def test_a_recovery_that_is_a_lower_bound_has_no_difference() -> None:
    values = {"recovery": (5.0, 3.0), "recovered": (0.5, 1.0)}
    metrics = {
        name: Paired(
            first=Spread(mean=first, std=None, count=1),
            second=Spread(mean=second, std=None, count=1),
            difference=second - first,
            interval=Interval(-3.0, -1.0),
        )
        for name, (first, second) in values.items()
    }
    rows = {row[0]: row[1:] for row in metric_rows(metrics)}
    assert rows["Recovery"] == ["≥ 5.0", "3.0", "", "", "1"]
    assert rows["Recovered"][2] == "+50.0"
