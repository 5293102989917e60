"""A study: goes on where it was, repeats itself with one worker, survives what goes wrong."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ocar.errors import OcarError, RunError
from ocar.methods.registry import preset_settings
from ocar_lab.experiment.executors import Executor, Inline, Processes, Stop, Work, WorkError
from ocar_lab.tune import Ended, Moved, SearchEvent, Study, Trial, TuneConfig, read_preset
from ocar_lab.tune.study import JOURNAL
from ocar_lab.tune.trial import Failed, Finished, Scored, TrialMessage


def tiny(**values: Any) -> TuneConfig:
    """A study whose trials take some hundredths of a second."""
    common = {"benchmark": "split-digits", "tasks": 1, "max_batches": 4, "device": "cpu"}
    return TuneConfig(**{"method": "er", "threads": 1, **common, **values})


def found(trials: Sequence[Trial]) -> list[Any]:
    """What does not depend on time, or on trials that were cut short."""
    return [(t.state, t.settings, t.value, t.scores) for t in trials]


class Scripted(Executor):
    """Does no work: a function of the settings returns the messages of a trial.

    Args:
        script: The messages of a trial; an error is what its worker raises.
        workers: Trials at a time.
    """

    def __init__(self, script: Callable[[dict[str, Any]], list[Any]], *, workers: int = 1) -> None:
        self.script, self.workers = script, workers

    def run(self, work: Work, stop: Stop) -> Generator[Any, None, None]:
        for message in self.script(work.config.settings):  # type: ignore[attr-defined]
            if isinstance(message, WorkError):
                raise message
            yield message


def judged(*values: float) -> list[TrialMessage]:
    """The messages of a trial with these scores."""
    scores = [
        Scored(batches=10 * task + 10, task=task, value=value) for task, value in enumerate(values)
    ]
    return [*scores, Finished()]


def test_a_study_that_was_cut_short_finds_what_one_does_that_was_not(tmp_path: Path) -> None:
    config, trials = tiny(), 13  # three of them by the estimator
    events: list[SearchEvent] = []
    with Study(config, tmp_path / "whole") as whole:
        whole.search(Inline(), trials=trials, listen=events.append)
        expected = found(whole.trials())
    assert [e.trial.number for e in events if isinstance(e, Ended)] == list(range(trials))
    assert len({t[1]["lr"] for t in expected}) == trials
    with Study(config, tmp_path / "cut") as study:
        study.search(Inline(), trials=4)

    def leave(event: SearchEvent) -> None:
        if isinstance(event, Moved) and event.done == 0 and event.batches:
            raise KeyboardInterrupt

    with Study(config, tmp_path / "cut") as study:  # left in the middle of a trial
        with pytest.raises(KeyboardInterrupt):
            study.search(Inline(), trials=trials, listen=leave)
        assert len(study.trials()) == 4
    journal = tmp_path / "cut" / JOURNAL
    journal.with_name(f"{JOURNAL}.lock").symlink_to("nowhere")  # as a kill leaves it
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    last: list[Any] = []
    with Study(config, tmp_path / "cut") as study:  # asked to stop in the middle of a trial

        def is_in_the_ninth() -> bool:
            return len(study.trials()) == 9 and isinstance(last[-1], Moved)

        study.search(Inline(), trials=trials, stop=is_in_the_ninth, listen=last.append)
        assert len(study.trials()) == 8
    with Study(config, tmp_path / "cut") as study:
        study.search(Inline(), trials=trials)
        assert found(study.trials()) == expected
        events.clear()
        study.search(Inline(), trials=trials, listen=events.append)
        assert events == []


def test_another_configuration_is_refused_with_the_reason(tmp_path: Path) -> None:
    again = Study(tiny(), tmp_path)
    with Study(tiny(), tmp_path), pytest.raises(RunError, match="in use by process"):
        again.__enter__()
    with Study(tiny(threads=2), tmp_path):
        pass  # threads are no part of it
    for values, reason in (
        ({"max_batches": 5}, "max_batches is 4 there and 5 here"),
        ({"settings": {"memory": 7}}, "settings: memory is 100 there and 7 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"prune": False}, "search: pruning is after the same batch not in the best 12.5%"),
        ({"method": "er-ace"}, "method is er there and er-ace here"),
    ):
        with pytest.raises(RunError, match=reason), Study(tiny(**values), tmp_path):
            pass


def test_the_estimator_finds_the_optimum_of_a_known_function(tmp_path: Path) -> None:
    def script(settings: dict[str, Any]) -> list[TrialMessage]:
        return judged(-((math.log10(settings["lr"]) + 3) ** 2))

    with Study(tiny(), tmp_path) as study:

        def listen(event: SearchEvent) -> None:
            if isinstance(event, Ended):
                assert event.best is not None
                assert event.best == study.ranking()[0]

        study.search(Scripted(script), trials=40, listen=listen)
        ranking = study.ranking()
        values = [t.value for t in study.trials() if t.value is not None]
        assert len(values) == 40
        assert [t.value for t in ranking] == sorted(values, reverse=True)
        assert abs(math.log10(ranking[0].settings["lr"]) + 3) < 0.1
        late = [abs(math.log10(t.settings["lr"]) + 3) for t in study.trials()[30:]]
        assert sum(distance < 0.5 for distance in late) >= 5  # of ten; at random two or three
        preset = read_preset(study.preset_path)
    assert preset.settings == ranking[0].settings
    assert (preset.method, preset.benchmark) == ("er", "split-digits")


def test_less_is_better_in_regression(tmp_path: Path) -> None:
    config = TuneConfig(benchmark="convex", method="er", device="cpu", tasks=1)
    with Study(config, tmp_path) as study:
        study.search(Scripted(lambda settings: judged(settings["lr"])), trials=5)
        rates = [t.settings["lr"] for t in study.trials()]
        assert study.ranking()[0].settings["lr"] == min(rates)


def test_trials_that_do_worse_than_most_are_stopped(tmp_path: Path) -> None:
    """Scores fall from task to task, as they do: only those after the same batch are compared."""
    counter = iter(range(100))

    def script(settings: dict[str, Any]) -> list[TrialMessage]:
        number = next(counter)
        return judged(1.0, *((0.5, 0.4, 0.3) if number < 5 or number % 2 else (0.45, 0.9, 0.9)))

    with Study(tiny(tasks=4, max_batches=None), tmp_path / "pruned") as study:
        study.search(Scripted(script), trials=10)
        states = [t.state for t in study.trials()]
        assert states == ["finished"] * 6 + ["pruned", "finished"] * 2
        assert study.trials()[6].scores == {10: 1.0, 20: 0.45}
    counter = iter(range(100))
    with Study(tiny(tasks=4, max_batches=None, prune=False), tmp_path / "not") as study:
        study.search(Scripted(script), trials=14)
        assert {t.state for t in study.trials()} == {"finished"}


def test_failures_count_and_the_study_goes_on(tmp_path: Path) -> None:
    counter = iter(range(100))

    def script(settings: dict[str, Any]) -> list[Any]:
        number = next(counter)
        if number == 1:
            return [WorkError("it has a bug", "Traceback")]
        return [WorkError("Its process died")] if number == 2 else judged(0.5)

    with Study(tiny(), tmp_path) as study:
        events: list[SearchEvent] = []
        study.search(Scripted(script), trials=5, listen=events.append)
        states = [t.state for t in study.trials()]
        assert states == ["finished", "failed", "failed", "finished", "finished"]
        assert [t.error for t in study.trials()[1:3]] == ["it has a bug", "Its process died"]
    assert [e.details for e in events if isinstance(e, Ended)] == ["", "Traceback", "", "", ""]


def test_the_search_keeps_away_from_where_trials_diverge(tmp_path: Path) -> None:
    """Half of the draws would diverge, were nothing learned from those that do."""

    def script(settings: dict[str, Any]) -> list[Any]:
        if settings["lr"] > 1e-3:  # half of the range
            return [Failed(error="it has diverged", reason="settings")]
        return judged(-abs(math.log10(settings["lr"]) + 4))

    with Study(tiny(), tmp_path) as study:
        study.search(Scripted(script), trials=60)
        late = [t.state for t in study.trials()[30:]]
    assert late.count("failed") < 8


def test_what_is_not_the_fault_of_the_settings_ends_the_search(tmp_path: Path) -> None:
    def script(settings: dict[str, Any]) -> list[TrialMessage]:
        return [Failed(error="no such data", reason="setup")]

    with Study(tiny(), tmp_path / "data") as study:
        with pytest.raises(OcarError, match="no such data"):
            study.search(Scripted(script), trials=5)
        assert study.trials() == []  # and it will be tried again
    diverging = tiny(method="er-ace", settings={"lr": 1e30})
    with Study(diverging, tmp_path / "all") as study:
        with pytest.raises(
            RunError, match=r"All of 10 trials failed, the last one with: .*diverged"
        ):
            study.search(Inline(), trials=50)
        assert not study.preset_path.exists()


@pytest.mark.long
def test_a_worker_that_is_killed_loses_one_trial(tmp_path: Path) -> None:
    config = tiny(tasks=1, max_batches=None, settings={"passes": 20})

    moved: set[int] = set()
    killed = False

    def listen(event: SearchEvent) -> None:
        nonlocal killed
        if isinstance(event, Moved) and event.done > 0:
            moved.add(event.number)
        if len(moved) >= 2 and not killed:
            killed = True
            multiprocessing.active_children()[0].kill()

    with Study(config, tmp_path) as study:
        study.search(Processes(2), trials=6, listen=listen)
        states = [t.state for t in study.trials()]
        (lost,) = [t for t in study.trials() if t.state == "failed"]
    assert killed
    assert states.count("finished") == 5
    assert "died with exit code -9" in lost.error


def test_what_is_in_use_is_tried_first(tmp_path: Path) -> None:
    config = tiny(method="ocar")
    assert config.first == {
        name: preset_settings("split-digits", "ocar")[name] for name in config.space
    }
    asked = iter([False, False, True])
    with Study(config, tmp_path / "study") as study:
        study.search(Scripted(lambda _: []), trials=3, stop=lambda: next(asked))  # cut short
        assert study.trials() == []
        study.search(Scripted(lambda _: judged(0.5)), trials=2)
        first, second = study.trials()
    assert first.settings == config.first != second.settings


def test_several_trials_at_a_time(tmp_path: Path) -> None:
    with Study(tiny(), tmp_path) as study:
        study.search(Scripted(lambda s: judged(s["lr"]), workers=3), trials=12)
        assert [t.state for t in study.trials()] == ["finished"] * 12
        assert study.ranking()[0].value == max(t.settings["lr"] for t in study.trials())


def test_a_study_that_was_killed_before_its_first_trial_goes_on(tmp_path: Path) -> None:
    config = tiny()
    with Study(config, tmp_path / "study") as study:
        study._study.enqueue_trial(config.first)  # as far as it had got
        assert study.trials() == []
    with Study(config, tmp_path / "study") as study:
        study.search(Scripted(lambda _: judged(0.5)), trials=2)
        first, second = study.trials()
    assert first.settings == config.first != second.settings


def test_a_default_is_tried_first_where_the_preset_has_no_value() -> None:
    preset, first = preset_settings("split-digits", "ocar-slow"), tiny(method="ocar-slow").first
    assert first["lr"] == preset["lr"]
    assert "slow_rate" not in preset
    assert first["slow_rate"] == 0.008


def test_without_a_preset_that_fits_all_trials_are_drawn() -> None:
    assert tiny(try_preset=False).first == {}
    assert tiny(method="er-ace", transform="ocar").first == {}
    assert tiny(method="gdumb", settings={"memory": 50}).first == {"lr": 1.0}
    assert TuneConfig(benchmark="pacs", method="mir", device="cpu").first == {}
    kept = tiny(method="ocar", settings={"lr": 0.3})
    assert "lr" not in kept.first
    assert kept.first.keys() == kept.space.keys()
