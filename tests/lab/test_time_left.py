"""The time left of several runs, and the suggestion to evaluate less often."""

from __future__ import annotations

import pytest

from ocar_lab.cli.progress import RunDisplay
from ocar_lab.cli.time_left import TimeLeft
from ocar_lab.experiment import Ended, Progress

METHODS = ["er", "ocar", "er", "ocar"]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def moved(job: int, done: int, *, resumed: int = 0, evaluating: float = 0.0) -> Progress:
    return Progress(job=job, done=done, batches=100, resumed=resumed, evaluating=evaluating)


def two_methods_two_seeds(workers: int) -> TimeLeft:
    """After 10 s, two of four runs have begun: ER is half done, OCAR a tenth."""
    clock = Clock()
    left = TimeLeft(METHODS, workers=workers, clock=clock)
    for job in (0, 1):
        left.follow(moved(job, 0))
    clock.now = 10.0
    left.follow(moved(0, 50))
    left.follow(moved(1, 10))
    return left


def test_a_run_goes_on_at_its_speed_and_others_take_as_long_as_their_method() -> None:
    left = two_methods_two_seeds(workers=2)
    assert [left.of_run(job) for job in range(4)] == pytest.approx([10, 90, 20, 100])
    assert left.of_all() == pytest.approx((10 + 90 + 20 + 100) / 2)
    assert two_methods_two_seeds(workers=1).of_all() == pytest.approx(220)
    assert two_methods_two_seeds(workers=4).of_all() == pytest.approx(100)  # the longest


def test_an_ended_run_stands_for_those_of_its_method() -> None:
    left = two_methods_two_seeds(workers=2)
    left.follow(moved(0, 100))
    left.follow(Ended(job=0, state="finished"))
    left.clock.now = 1000.0  # type: ignore[attr-defined]
    assert left.of_run(0) == 0
    assert left.of_run(2) == pytest.approx(10)  # as long as it took, not as long as ago


def test_what_was_done_before_does_not_count_as_speed() -> None:
    clock = Clock()
    left = TimeLeft(["er"], clock=clock)
    left.follow(moved(0, 80, resumed=80))
    assert left.of_all() is None
    clock.now = 10.0
    left.follow(moved(0, 90, resumed=80))
    assert left.of_all() == pytest.approx(10)


@pytest.mark.parametrize(
    ("share", "every", "said"), [(0.4, 1, ""), (0.8, 1, "--every 20 "), (0.8, 10, "--every 200 ")]
)
def test_fewer_evaluations_are_suggested_where_they_dominate(
    share: float, every: int, said: str
) -> None:
    left = two_methods_two_seeds(workers=2)
    hint = left.suggest_every(moved(0, 50, evaluating=share), every)
    assert said in hint
    assert bool(hint) == bool(said)


def test_nothing_is_suggested_for_a_short_run() -> None:
    clock = Clock()
    left = TimeLeft(["er"], clock=clock)
    left.follow(moved(0, 0))
    clock.now = 10.0
    left.follow(moved(0, 50))
    assert left.suggest_every(moved(0, 50, evaluating=0.9), 1) == ""


def test_bars_show_the_time_left_of_each_run_and_of_all() -> None:
    left = two_methods_two_seeds(workers=2)
    with RunDisplay([f"{name} seed" for name in METHODS], left, terminal=True) as display:
        display.show(moved(0, 50))
        tasks = display.bars.tasks
        assert [task.fields["left"] for task in tasks] == ["0:10 left", "", "", "", "1:50 left"]
        assert tasks[-1].total == 4
        display.show(Ended(job=1, state="failed"))
        assert tasks[-1].completed == 0
        display.show(Ended(job=0, state="finished"))
        assert tasks[-1].completed == 1


def test_lines_show_the_time_left_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocar_lab.cli.progress.LINE_SECONDS", 0.0)
    left = two_methods_two_seeds(workers=2)
    with RunDisplay([f"{name} seed" for name in METHODS], left, terminal=False) as display:
        display.show(moved(0, 0))
        display.show(moved(0, 50))
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("er seed: 50/100  0:10 left, all runs 1:50 left")
    )
