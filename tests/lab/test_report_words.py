"""What a report says in words: the headline, the best in bold, a recovery that never came."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_files import write_kept

from ocar.evaluate import summarize
from ocar.events import Counts, Evaluated
from ocar_lab.report.figures import Line, usual_top
from ocar_lab.report.sections import Section, Table, make_report
from ocar_lab.runs import read_all
from ocar_lab.runs.table import METRICS, Spread
from ocar_lab.runs.texts import EXPLAINED, TITLES, metric_text

ER, OCAR = {0: 0.50, 1: 0.52, 2: 0.54}, {0: 0.60, 1: 0.63, 2: 0.63}


def section(folder: Path, **methods: dict[int, float]) -> Section:
    for label, acc in methods.items():
        seconds = 1.0 if label == "er" else 2.0
        metrics = {seed: {"acc": value, "seconds": seconds} for seed, value in acc.items()}
        write_kept(folder, "split-digits", label, metrics)
    runs, errors = read_all(folder)
    assert not errors
    return make_report(runs, title="", created="").sections[0]


def test_the_headline_is_the_best_and_how_clear_it_is(tmp_path: Path) -> None:
    said = section(tmp_path, er=ER, ocar=OCAR).headline
    assert said == (
        "Best Acc: ocar 62.0 ± 1.7 %, then er 52.0 ± 2.0 %. The difference is +10.0 points, with a "
        "95 % interval of +7.5 to +12.5 over 3 seeds."
    )


@pytest.mark.parametrize(
    ("ocar", "said"),
    [
        ({0: 0.60, 1: 0.40, 2: 0.63}, "It may be chance: the interval includes 0."),
        ({0: 0.60}, "With one seed in common, that may be chance."),
        ({7: 0.60, 8: 0.61}, "then er 52.0 ± 2.0 %."),  # no seed in common
    ],
)
def test_a_difference_that_may_be_chance_is_said(
    tmp_path: Path, ocar: dict[int, float], said: str
) -> None:
    assert section(tmp_path, er=ER, ocar=ocar).headline.endswith(said)


def test_one_method_and_no_finished_run(tmp_path: Path) -> None:
    assert section(tmp_path, er=ER).headline == "Acc of er 52.0 ± 2.0 %."
    assert make_report([], title="", created="").sections == ()


def best_texts(table: Table) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row, column in table.best:
        found.setdefault(table.header[column], []).append(table.rows[row][0])
    return found


def test_the_best_of_each_metric_is_marked_whichever_way_is_better(tmp_path: Path) -> None:
    table = section(tmp_path, er=ER, ocar=OCAR, mir=OCAR).tables[0]
    # Equal as shown: both. Less time is better.
    assert best_texts(table) == {"Acc": ["mir", "ocar"], "Train s": ["er"]}
    assert best_texts(section(tmp_path / "one", er=ER).tables[0]) == {}


@pytest.mark.parametrize(("exact", "best"), [(9.0, ["ocar"]), (11.0, None)])
def test_a_lower_bound_of_the_recovery_is_not_the_best(
    tmp_path: Path, exact: float, best: list[str] | None
) -> None:
    for label, recovery, recovered in (("er", 10.0, 0.5), ("ocar", exact, 1.0)):
        metrics = {"acc": 0.5, "recovery": recovery, "recovered": recovered}
        write_kept(tmp_path, "split-digits", label, {0: metrics})
    runs, errors = read_all(tmp_path)
    table = make_report(runs, title="", created="").sections[0].tables[1]
    assert not errors
    assert best_texts(table).get("Recovery") == best
    assert best_texts(table)["Recovered"] == ["ocar"]


def test_the_reference_with_all_classes_at_once_does_not_compete(tmp_path: Path) -> None:
    iid = {"er-iid": {0: 0.9, 1: 0.9}}
    found = section(tmp_path, er=ER, ocar=OCAR, **iid)
    assert found.headline.startswith("Best Acc: ocar 62.0 ± 1.7 %, then er ")
    assert best_texts(found.tables[0])["Acc"] == ["ocar"]


def test_every_metric_has_a_title_and_an_explanation() -> None:
    assert set(METRICS) == set(TITLES) == set(EXPLAINED)


def recovery_of(later: list[int]) -> str:
    """The text of the recovery, where 9 of 10 were known before a boundary and so many later."""
    counts = [(9,), *((known, 0) for known in later)]
    events = [
        Evaluated(
            correct=correct, sizes=(10,) * len(correct), index=i, task=len(correct) - 1, seconds=i
        )
        for i, correct in enumerate(counts)
    ]
    test = Counts(correct=counts[-1], sizes=(10, 10))
    summary = summarize(events, test=test, seconds=1.0)
    named = {"recovery": summary.recovery, "recovered": summary.recovered}
    spreads = {n: Spread(mean=v, std=None, count=1) for n, v in named.items() if v is not None}
    return metric_text("recovery", spreads)


def test_a_recovery_that_never_came_is_no_number() -> None:
    assert recovery_of([5, 7, 9]) == "3.0"
    assert recovery_of([5, 7, 8]) == "never"
    old = {"recovery": Spread(mean=3.0, std=0.5, count=2)}  # of a version that did not count it
    assert metric_text("recovery", old) == "3.0 ± 0.5"
    some = old | {"recovered": Spread(mean=0.5, std=0.0, count=2)}
    assert metric_text("recovery", some) == "≥ 3.0 ± 0.5"


def test_a_few_values_far_above_do_not_decide_the_axis() -> None:
    def line(*mean: float) -> Line:
        none = (None,) * len(mean)
        x = tuple(map(float, range(len(mean))))
        return Line(method=0, x=x, mean=mean, std=none, seeds=(1,) * len(mean))

    usual = [10.0] * 99
    assert usual_top([line(*usual, 1000.0)]) == pytest.approx(12.5)
    assert usual_top([line(*usual, 20.0)]) is None
    assert usual_top([]) is None
