"""A learner and a stream for the tests of the evaluation loop, and what they count by hand."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch

from ocar.datasets import Arrays
from ocar.evaluate import Evaluated, Event, Finished, Idle, Learned, Summary, TaskEnded
from ocar.streams import ClassIncremental


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

    def right(row: tuple[list[int], list[int]], tasks: int) -> float:
        return sum(row[0][:tasks]) / sum(row[1][:tasks])

    drops, recoveries, recovered = [], [], 0
    for task in range(1, len(rows[-1][0])):
        before = right([row for row in rows if len(row[0]) == task][-1], task)
        during = [right(row, task) for row in rows if len(row[0]) == task + 1]
        place = during.index(min(during))
        back = [n + 1 for n in range(place, len(during)) if during[n] >= before - 1e-12]
        drops.append(max(0.0, before - min(during)))
        recovered += bool(back)
        recoveries.append(0 if back[:1] == [place + 1] else back[0] if back else len(during))
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
        "forgetting_mean": sum(
            [a for a in acc if len(a) == i + 1][-1][i] - acc[-1][i] for i in range(k - 1)
        )
        / (k - 1),
        "stability_gap": sum(drops) / (k - 1),
        "recovery": sum(recoveries) / (k - 1),
        "recovered": recovered / (k - 1),
    }


def summary_values(summary: Summary) -> dict[str, float | None]:
    values = asdict(summary)
    clocks = ("seconds", "first_task_seconds")
    return {name: v for name, v in values.items() if name not in clocks and v is not None}


def without_seconds(event: Event) -> tuple[object, ...]:
    match event:
        case Evaluated():
            return ("evaluated", event.index, event.task, event.correct, event.sizes)
        case Learned():
            return ("learned", event.index, event.task)
        case TaskEnded():
            return ("ended", event.index, event.task)
        case Idle():
            return ("idle", event.index)
        case Finished():
            return ("finished", event.correct, summary_values(event.summary))
