"""The evaluation loop: what it calls, what it yields, and its metrics against brute force."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
import torch

from ocar.errors import ConfigError, InputError
from ocar.evaluate import (
    Evaluated,
    Event,
    Finished,
    Learned,
    Summary,
    TaskEnded,
    evaluate,
)
from ocar.streams.datasets import Arrays
from ocar.streams.split import ClassIncremental


@dataclass
class Report:
    loss: torch.Tensor


@dataclass
class NearestMean:
    """Predicts the class with the nearest mean; keeps a record of what it was asked."""

    calls: list[tuple[str, int]] = field(default_factory=list)
    sums: dict[int, torch.Tensor] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[int, ...]:
        return tuple(self.sums)

    def learn(self, x: torch.Tensor, y: torch.Tensor) -> Report:
        self.calls.append(("learn", len(y)))
        for image, label in zip(x.double().flatten(1), y.tolist(), strict=True):
            self.sums[label] = self.sums.get(label, torch.zeros_like(image)) + image
            self.counts[label] = self.counts.get(label, 0) + 1
        return Report(loss=torch.tensor(float(len(self.calls)), requires_grad=True))

    def remember(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.calls.append(("remember", len(y)))

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(("predict", len(x)))
        if not self.sums:
            return torch.zeros(len(x), 0)
        means = torch.stack([self.sums[c] / self.counts[c] for c in self.classes])
        return -torch.cdist(x.double().flatten(1), means)


def make_arrays() -> Arrays:
    """Noisy images of six classes, unequally many, that a nearest mean mostly gets right."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randint(60, 190, (6, 4), generator=generator)

    def part(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(6).repeat(n)
        noise = torch.randint(-60, 61, (6 * n, 4), generator=generator)
        return (centres[y] + noise).to(torch.uint8).view(-1, 1, 2, 2), y

    (x_train, y_train), (x_test, y_test) = part(23), part(7)
    rare = (y_train < 3) & (torch.arange(len(y_train)) // 6 % 2 == 0)
    x_train, y_train = x_train[~rare], y_train[~rare]
    return Arrays(name="noisy", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def make_stream(*, validation: float = 0.2, iid: bool = False) -> ClassIncremental:
    return ClassIncremental(
        make_arrays(), tasks=3, batch_size=5, validation=validation, seed=1, iid=iid
    )


def brute_counts(
    learner: NearestMean, parts: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[int, ...]:
    counts = []
    for x, y in parts:
        right = 0
        for image, label in zip(x, y.tolist(), strict=True):
            scores = learner.predict(image[None])[0]
            right += bool(len(scores)) and learner.classes[int(scores.argmax())] == label
        counts.append(right)
    return tuple(counts)


def brute_summary(rows: list[tuple[list[int], list[int]]], test: float) -> dict[str, float]:
    """The metrics from correct counts and sizes of each evaluation."""
    acc = [[c / n for c, n in zip(*row, strict=True)] for row in rows]
    k = len(acc[-1])
    lowest = [min(a[i] for a in acc if len(a) > i + 1) for i in range(k - 1)]
    worst = acc[-1][-1] / k + sum(lowest) / k
    return {
        "acc": test,
        "aaa": sum(sum(c) / sum(n) for c, n in rows) / len(rows),
        "wc_acc": worst,
        "forgetting": [a for a in acc if len(a) == 1][-1][0] - acc[-1][0],
        "plasticity": acc[-1][-1],
    }


def summary_values(summary: Summary) -> dict[str, float]:
    return {
        name: getattr(summary, name)
        for name in ("acc", "aaa", "wc_acc", "forgetting", "plasticity")
    }


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
            assert not event.loss.requires_grad
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


def test_every_kth_batch_and_each_task_end() -> None:
    for every in (1, 2, 3, 7, 1000):
        events = list(evaluate(NearestMean(), make_stream(), every=every))
        got = [event.index for event in events if isinstance(event, Evaluated)]
        batches = list(make_stream())
        want = [b.index for b in batches if (b.index + 1) % every == 0 or b.last]
        assert got == want
        assert sum(isinstance(e, Learned) for e in events) == sum(b.complete for b in batches)
        ended = [event.task for event in events if isinstance(event, TaskEnded)]
        assert ended == [0, 1, 2]


def without_seconds(event: Event) -> tuple[object, ...]:
    match event:
        case Evaluated():
            return ("evaluated", event.index, event.task, event.correct, event.sizes)
        case Learned():
            return ("learned", event.index, event.task)
        case TaskEnded():
            return ("ended", event.index, event.task)
        case Finished():
            return ("finished", event.correct, summary_values(event.summary))


def test_a_run_stopped_at_any_evaluation_goes_on_the_same() -> None:
    whole = [without_seconds(e) for e in evaluate(NearestMean(), make_stream())]
    evaluations = len([e for e in whole if e[0] == "evaluated"])
    for stop in range(1, evaluations + 1):
        learner, stream = NearestMean(), make_stream()
        history: list[Evaluated] = []
        for event in evaluate(learner, stream):
            if isinstance(event, Evaluated):
                history.append(event)
                if len(history) == stop:
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


def test_one_task_of_all_classes() -> None:
    *_, finished = evaluate(NearestMean(), make_stream(iid=True))
    assert isinstance(finished, Finished)
    assert len(finished.correct) == 1
    assert finished.summary.wc_acc == finished.summary.plasticity
    assert finished.summary.forgetting == 0


def test_test_data_is_predicted_in_pieces() -> None:
    whole, pieces = NearestMean(), NearestMean()
    *_, a = evaluate(whole, make_stream())
    *_, b = evaluate(pieces, make_stream(), test_batch=4)
    assert without_seconds(a) == without_seconds(b)
    assert pieces.calls[-4:] == [("predict", 4)] * 3 + [("predict", 2)]


def test_a_learner_that_knows_nothing_is_always_wrong() -> None:
    class Idle(NearestMean):
        def learn(self, x: torch.Tensor, y: torch.Tensor) -> Report:
            return Report(loss=torch.tensor(0.0))

    *_, finished = evaluate(Idle(), make_stream())
    assert isinstance(finished, Finished)
    assert summary_values(finished.summary) == dict.fromkeys(summary_values(finished.summary), 0.0)


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
