"""The evaluation loop: what it calls, what it yields, and its metrics against brute force."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import pytest
import torch
from nearest_mean import (
    NearestMean,
    Report,
    brute_counts,
    brute_summary,
    make_stream,
    summary_values,
    without_seconds,
)

from ocar.errors import ConfigError, InputError, ModelError
from ocar.evaluate import (
    Counts,
    Evaluated,
    Event,
    Finished,
    Idle,
    Learned,
    TaskEnded,
    evaluate,
    summarize,
)
from ocar.evaluate.probe import probe_stream
from ocar.streams import IterableStream


def test_events_calls_and_metrics_of_a_whole_run() -> None:
    stream, learner, oracle = make_stream(), NearestMean(), NearestMean()
    batches = list(make_stream())
    assert {batch.complete for batch in batches} == {True, False}
    events = evaluate(learner, stream)
    rows: list[tuple[list[int], list[int]]] = []
    for batch in batches:
        learner.calls.clear()
        parts = [stream.validation(task) for task in range(batch.task + 1)]
        sizes = [len(y) for _, y in parts]
        if batch.complete:
            oracle.learn(batch.x, batch.y)
            event = next(events)
            assert isinstance(event, Learned)
            assert (event.index, event.task) == (batch.index, batch.task)
            assert learner.calls == [("learn", 5)]
            assert float(event.loss) == event.report.loss.item()
            before = [("learn", 5)]
        else:
            before = [("remember", len(batch.y))]
        event = next(events)
        assert isinstance(event, Evaluated)
        assert stream.position == batch.index + 1
        assert learner.calls == [*before, ("predict", sum(sizes))]
        assert (event.index, event.task) == (batch.index, batch.task)
        assert event.correct == brute_counts(oracle, parts)
        assert list(event.sizes) == sizes
        assert event.accuracy == sum(event.correct) / sum(sizes)
        assert event.accuracies == tuple(c / n for c, n in zip(event.correct, sizes, strict=True))
        rows.append((list(event.correct), sizes))
        assert next(events) == Idle(index=batch.index)
        if batch.last:
            event = next(events)
            assert isinstance(event, TaskEnded)
            assert (event.index, event.task) == (batch.index, batch.task)
    finished = next(events)
    assert isinstance(finished, Finished)
    assert next(events, None) is None
    tests = [stream.test(task) for task in range(3)]
    assert finished.correct == brute_counts(oracle, tests)
    assert finished.sizes == (14, 14, 14)
    want = brute_summary(rows, sum(finished.correct) / 42)
    assert want["stability_gap"] > 0
    assert want["recovery"] > 0
    assert summary_values(finished.summary) == pytest.approx(want, rel=1e-12)
    assert 0.5 < finished.summary.acc < 1  # a run on which the metrics have something to say


def test_classes_not_yet_seen_count_as_wrong() -> None:
    stream, learner = make_stream(), NearestMean()
    for event in evaluate(learner, stream):
        if isinstance(event, Evaluated):
            for task, correct in enumerate(event.correct):
                _, y = stream.validation(task)
                possible = sum(label in learner.classes for label in y.tolist())
                assert correct <= possible


@pytest.mark.parametrize("block", [2, 3, 100])
def test_blocks_emit_the_same_events(block: int) -> None:
    whole = [without_seconds(e) for e in evaluate(NearestMean(), make_stream())]
    stream, waiting, emitted = make_stream(), 0, []
    for event in evaluate(NearestMean(), stream, block=block):
        emitted.append(without_seconds(event))
        if isinstance(event, Evaluated):
            waiting += 1
        if isinstance(event, Idle):
            assert stream.position == event.index + 1
            assert 1 <= waiting <= block
            waiting = 0
    for kind in ("learned", "evaluated", "ended", "finished"):
        assert [e for e in emitted if e[0] == kind] == [e for e in whole if e[0] == kind]
    assert emitted[-1] == whole[-1]
    assert len(emitted) < len(whole)  # fewer flushes


@pytest.mark.parametrize("block", [2, 3])
@pytest.mark.parametrize("interval", [1, 7, 1000])
def test_blocks_emitted_one_later_have_the_same_events(block: int, interval: int) -> None:
    whole = [without_seconds(e) for e in evaluate(NearestMean(), make_stream())]
    stream, emitted, asked = make_stream(), [], []

    def flush(index: int) -> bool:
        asked.append(index)
        return len(asked) % interval == 0

    evaluated, ended, idle, ahead = -1, -1, [], 0
    for event in evaluate(NearestMean(), stream, block=block, flush=flush):
        emitted.append(without_seconds(event))
        if isinstance(event, Evaluated):
            evaluated = event.index
            ahead = max(ahead, stream.position - 1 - evaluated)
        if isinstance(event, Idle):
            assert evaluated == event.index == stream.position - 1
            idle.append(event.index)
        if isinstance(event, TaskEnded):
            ended = event.index
            assert idle[-1] == ended
    for kind in ("learned", "evaluated", "ended", "finished"):
        assert [e for e in emitted if e[0] == kind] == [e for e in whole if e[0] == kind]
    wanted = asked[interval - 1 :: interval]
    assert set(wanted) <= set(idle)
    ends = [event.index for event in make_stream() if event.last]
    assert sorted({*wanted, *ends}) == idle
    assert ahead == 2 * block - 1  # a block is emitted when the next has been learned


def test_every_kth_batch_and_each_task_end() -> None:
    for every in (1, 2, 3, 7, 1000, "task"):
        events = list(evaluate(NearestMean(), make_stream(), every=every))
        got = [event.index for event in events if isinstance(event, Evaluated)]
        batches = list(make_stream())
        due = [every != "task" and (b.index + 1) % every == 0 for b in batches]
        assert got == [b.index for b, now in zip(batches, due, strict=True) if now or b.last]
        assert sum(isinstance(e, Learned) for e in events) == sum(b.complete for b in batches)
        ended = [event.task for event in events if isinstance(event, TaskEnded)]
        assert ended == [0, 1, 2]


def test_a_run_stopped_at_any_evaluation_goes_on_the_same() -> None:
    whole = [without_seconds(e) for e in evaluate(NearestMean(), make_stream())]
    evaluations = len([e for e in whole if e[0] == "evaluated"])
    for stop in range(1, evaluations + 1):
        learner, stream = NearestMean(), make_stream()
        history: list[Evaluated] = []
        for event in evaluate(learner, stream):
            if isinstance(event, Evaluated):
                history.append(event)
            if isinstance(event, Idle) and len(history) == stop:
                break
        resumed = make_stream()
        resumed.load_state_dict(stream.state_dict())
        rest = list(evaluate(learner, resumed, history=history))
        assert len(history) == stop  # the caller's list is not touched
        assert without_seconds(rest[-1]) == whole[-1]
        got = [without_seconds(e) for e in [*history, *rest] if isinstance(e, Evaluated)]
        assert got == [e for e in whole if e[0] == "evaluated"]
        assert isinstance(rest[-1], Finished)
        assert rest[-1].summary.seconds >= history[-1].seconds


def test_seconds_leave_evaluation_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Timed(NearestMean):
        def learn(self, x: torch.Tensor, y: torch.Tensor) -> Report:
            now[0] += 1
            return super().learn(x, y)

        def remember(self, x: torch.Tensor, y: torch.Tensor) -> None:
            now[0] += 0.25
            super().remember(x, y)

        def predict(self, x: torch.Tensor) -> torch.Tensor:
            now[0] += 1000
            return super().predict(x)

    learner = Timed()
    event: Event | None = None
    for event in evaluate(learner, make_stream()):  # noqa: B007
        now[0] += 50  # a listener takes its time
    assert isinstance(event, Finished)
    batches = list(make_stream())
    want = sum(1 if batch.complete else 0.25 for batch in batches)
    assert event.summary.seconds == pytest.approx(want)
    first = sum(1 if batch.complete else 0.25 for batch in batches if batch.task == 0)
    assert event.summary.first_task_seconds == pytest.approx(first)
    assert 0 < first < want


def test_one_task_of_all_classes() -> None:
    *_, finished = evaluate(NearestMean(), make_stream(iid=True))
    assert isinstance(finished, Finished)
    assert len(finished.correct) == 1
    assert finished.summary.wc_acc == finished.summary.plasticity
    assert finished.summary.forgetting == 0
    # One task has no boundary and no earlier task, and nothing else was measured.
    undefined = {
        "forgetting_mean",
        "stability_gap",
        "recovery",
        "recovered",
        "probe",
        "online_acc",
        "l_p",
        "l_s",
    }
    assert {name for name, value in asdict(finished.summary).items() if value is None} == undefined


def test_test_data_is_predicted_in_pieces() -> None:
    whole, pieces = NearestMean(), NearestMean()
    *_, a = evaluate(whole, make_stream())
    *_, b = evaluate(pieces, make_stream(), test_batch=4)
    assert without_seconds(a) == without_seconds(b)
    assert pieces.calls[-4:] == [("predict", 4)] * 3 + [("predict", 2)]


def test_a_learner_that_knows_nothing_is_always_wrong() -> None:
    class Forgetful(NearestMean):
        def learn(self, x: torch.Tensor, y: torch.Tensor) -> Report:
            return Report(loss=torch.tensor(0.0))

    *_, finished = evaluate(Forgetful(), make_stream())
    assert isinstance(finished, Finished)
    values = summary_values(finished.summary)
    assert values.pop("recovered") == 1.0  # there was no fall
    assert set(values.values()) == {0.0}


def test_errors_name_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="Invalid every=0"):
        evaluate(NearestMean(), make_stream(), every=0)
    with pytest.raises(InputError, match="Task 0 has no validation data"):
        list(evaluate(NearestMean(), make_stream(validation=0.0)))
    used = make_stream()
    list(used)
    with pytest.raises(InputError, match="no batch left, no history"):
        list(evaluate(NearestMean(), used))

    class Wide(NearestMean):
        def predict(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), 16)

    with pytest.raises(InputError, match=r"predicts \(\d+, 16\) for \d+ samples"):
        list(evaluate(Wide(), make_stream()))


# --- what a learner may ask for ---


def test_a_learner_that_wants_boundaries_gets_them() -> None:
    @dataclass
    class Bounded(NearestMean):
        wants_boundaries: bool = True

        def boundary(self) -> None:
            self.calls.append(("boundary", 0))

    learner = Bounded()
    list(evaluate(learner, make_stream(), every=1000))
    kinds = [kind for kind, _ in learner.calls]
    assert kinds.count("boundary") == 2  # between three tasks
    for place in (i for i, kind in enumerate(kinds) if kind == "boundary"):
        # After the task's last batch and before the evaluation, on which it may be saved.
        assert kinds[place - 1] in ("learn", "remember")
        assert kinds[place + 1] == "predict"
    quiet = Bounded(wants_boundaries=False)
    list(evaluate(quiet, make_stream()))
    assert ("boundary", 0) not in quiet.calls
    one_task = Bounded()
    list(evaluate(one_task, make_stream(iid=True)))
    assert ("boundary", 0) not in one_task.calls


def test_memory_is_given_back_between_the_last_evaluation_and_the_test() -> None:
    @dataclass
    class Releasing(NearestMean):
        def release(self) -> None:
            self.calls.append(("release", 0))

    learner, stream = Releasing(), make_stream()
    list(evaluate(learner, stream))
    place = learner.calls.index(("release", 0))
    held_out = sum(len(stream.validation(task)[1]) for task in range(stream.tasks))
    assert learner.calls[place - 1] == ("predict", held_out)
    tested = learner.calls[place + 1 :]
    assert [kind for kind, _ in tested] == ["predict"] * len(tested)
    assert sum(n for _, n in tested) == sum(len(stream.test(t)[1]) for t in range(stream.tasks))


def test_a_boundary_counts_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Bounded(NearestMean):
        wants_boundaries = True

        def boundary(self) -> None:
            now[0] += 3

    *_, finished = evaluate(Bounded(), make_stream())
    assert isinstance(finished, Finished)
    assert finished.summary.seconds == pytest.approx(6)


def test_validation_data_is_gathered_once() -> None:
    stream = make_stream()
    asked: list[int] = []
    original = stream.validation

    def validation(task: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(task)
        return original(task)

    stream.validation = validation  # type: ignore[method-assign]
    list(evaluate(NearestMean(), stream))
    assert asked == [0, 1, 2]


def test_validation_data_is_kept_on_the_learners_device() -> None:
    class Seen(Exception):
        pass

    class Elsewhere(NearestMean):
        device = torch.device("meta")

        def predict(self, x: torch.Tensor) -> torch.Tensor:
            raise Seen(x.device)

    with pytest.raises(Seen) as caught:
        list(evaluate(Elsewhere(), make_stream()))
    assert caught.value.args == (torch.device("meta"),)


# --- predict, then learn ---


def test_online_accuracy_is_that_before_learning() -> None:
    learner, oracle = NearestMean(), NearestMean()
    *_, last, _, _, finished = evaluate(learner, make_stream(), online=True)
    right = total = 0
    for batch in make_stream():
        right += brute_counts(oracle, [(batch.x, batch.y)])[0]
        total += len(batch.y)
        if batch.complete:
            oracle.learn(batch.x, batch.y)
    assert isinstance(last, Evaluated)
    assert isinstance(finished, Finished)
    assert (last.online_correct, last.seen) == (right, total)
    assert finished.summary.online_acc == right / total
    assert 0.3 < right / total < 0.9
    *_, plain = evaluate(NearestMean(), make_stream())
    assert isinstance(plain, Finished)
    assert plain.correct == finished.correct  # looking changes nothing
    assert plain.summary.online_acc is None


@pytest.mark.parametrize("every", [1, 3])
def test_online_accuracy_survives_a_stop(every: int) -> None:
    *_, whole = evaluate(NearestMean(), make_stream(), online=True, every=every)
    learner, stream = NearestMean(), make_stream()
    history: list[Evaluated] = []
    for event in evaluate(learner, stream, online=True, every=every):
        if isinstance(event, Evaluated):
            history.append(event)
            if len(history) == 3:
                break
    *_, resumed = evaluate(learner, stream, online=True, every=every, history=history)
    assert without_seconds(resumed) == without_seconds(whole)


def test_a_stream_without_held_out_data_is_evaluated_online() -> None:
    pairs = [(batch.x, batch.y) for batch in make_stream()]
    *rest, finished = evaluate(NearestMean(), IterableStream(pairs), online=True)
    assert isinstance(finished, Finished)
    defined = {n for n, v in asdict(finished.summary).items() if v is not None}
    assert defined == {"online_acc", "seconds", "first_task_seconds"}
    assert all(event.sizes == () for event in rest if isinstance(event, Evaluated))
    with pytest.raises(InputError, match="or evaluate with online=True"):
        list(evaluate(NearestMean(), IterableStream(pairs)))


# --- metrics from events ---


def test_a_summary_follows_from_the_events() -> None:
    events = list(evaluate(NearestMean(), make_stream(), online=True))
    finished = events[-1]
    assert isinstance(finished, Finished)
    history = [event for event in events if isinstance(event, Evaluated)]
    test = Counts(correct=finished.correct, sizes=finished.sizes)
    assert summarize(history, test=test, seconds=history[-1].seconds) == finished.summary


def test_a_probe_is_part_of_the_summary() -> None:
    class Network:
        """Learns nothing; its features are the images."""

        classes = (0, 1, 2, 3, 4, 5)

        def __init__(self) -> None:
            self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 6))

        def learn(self, x: torch.Tensor, y: torch.Tensor) -> Report:
            return Report(loss=torch.tensor(0.0))

        def remember(self, x: torch.Tensor, y: torch.Tensor) -> None:
            pass

        def predict(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x.float() / 255)

    torch.manual_seed(0)
    learner, stream = Network(), make_stream()
    *_, finished = evaluate(learner, stream, probe=True)
    assert isinstance(finished, Finished)
    assert finished.probe == finished.summary.probe == probe_stream(learner, stream)
    assert finished.summary.probe is not None
    assert finished.summary.acc is not None
    assert finished.summary.probe > finished.summary.acc + 0.3
    with pytest.raises(ModelError, match="NearestMean cannot be probed"):
        evaluate(NearestMean(), stream, probe=True)  # at once, not at the end
