"""Compare heads in closed form on validation data, all in one run of ``ocar-slow``.

    python experiments/closed_form_search.py split-digits --seeds 100 101 102 --every 2
    python experiments/closed_form_search.py split-cifar100 --seeds 100 --every 50 --device cuda

A head only predicts, so one run can have many. Each is evaluated with the slow weights beside it,
unless its name says otherwise. AAA, WC-Acc and Acc are of validation data, and the seeds are not
reported. The results are added to ``results/settings/closed-form-BENCHMARK.json`` after each seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ocar import closed_form
from ocar.learner import Learner
from ocar.methods.context import with_inputs
from ocar.metrics import AnytimeAccuracy, WorstCaseAccuracy
from ocar.rng import make_generator
from ocar.streams import TaskStream
from ocar.structure import Inputs, call_with
from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.parts import make_config_learner, make_config_stream
from ocar_lab.runs.provenance import describe_process

TEMPERATURES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5)
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""λ over the mean of A's diagonal."""
USUAL = closed_form.DAMPING, closed_form.TEMPERATURE
CHUNK = 1000
METRICS = ("aaa", "wc_acc", "validation_acc")
REPLAYED = 10
EMA = 0.1
"""Samples of the memory beside each new batch in the running means of the classes, and the weight
of the newest batch, as in the averages of K-FAC."""


class RunningMeans:
    """The mean features of each class, averaged along the stream: no pass over the memory."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self._generator = make_generator(0, "replay")

    def follow(self, learner: Learner, x: Inputs, y: Tensor) -> None:
        """Take a stream batch and replayed samples in."""
        slots = learner.memory.slots
        drawn = torch.randperm(len(slots), generator=self._generator)[:REPLAYED]
        replay = learner.memory.gather(slots[drawn.to(slots.device)])
        assert isinstance(x, Tensor)
        assert isinstance(replay.x, Tensor)
        units = [learner.classes.index(label) for label in y.tolist()]
        labels = torch.cat([torch.tensor(units, device=learner.device), replay.y])
        with learner.context.evaluating(), torch.no_grad():
            both = torch.cat([x.to(learner.device), replay.x])
            rows, _ = pass_on(learner, learner.intake.normalize(both))
        for unit in range(len(learner.classes)):
            if unit == len(self.rows):
                self.rows.append(rows[labels == unit].mean(0))
            elif (labels == unit).any():
                self.rows[unit] = self.rows[unit].lerp(rows[labels == unit].mean(0), EMA)


def pass_on(
    learner: Learner, x: Inputs, weights: dict[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Features with a constant 1, and outputs, of the model or with other weights."""
    forward = learner.context.forward
    if weights is not None:
        forward = partial(call_with, learner.model, weights)
    assert learner.head is not None
    assert isinstance(x, Tensor)
    layer = learner.head.layer
    found = [with_inputs(layer, forward, part) for part in x.split(CHUNK)]
    rows, outputs = (torch.cat(parts) for parts in zip(*found, strict=True))
    return functional.pad(rows, (0, 1), value=1.0), outputs


class Heads:
    """All heads of a learner at one moment.

    Args:
        learner: The learner, in eval mode.
        running: The means of its classes along the stream.
        x: Inputs of the model to predict, and their mirror images if those count.
    """

    def __init__(self, learner: Learner, running: RunningMeans, x: list[Tensor]) -> None:
        self.learner, self.classes = learner, len(learner.classes)
        self.running = torch.stack(running.rows)
        memory = learner.memory.gather(learner.memory.slots)
        stored = learner.intake.normalize(memory.x)
        assert isinstance(stored, Tensor)
        self.labels = memory.y
        slow = learner.slow.weights()
        self.fast_rows, self.slow_rows = (pass_on(learner, stored, w)[0] for w in (None, slow))
        self.mirrored = pass_on(learner, stored.flip(-1))[0] if len(x) > 1 else None
        self.fast, self.slow = ([pass_on(learner, v, w) for v in x] for w in (None, slow))

    def mean(self, logits: list[Tensor]) -> Tensor:
        """The mean probabilities of some views."""
        return torch.stack([own[:, : self.classes].softmax(1) for own in logits]).mean(0)

    def solved(self, *, slow: bool = False, strength: float = USUAL[0], mirrored: bool = False,
               temperature: float | None = USUAL[1]) -> Tensor:  # fmt: skip
        """Probabilities by a closed form; without a temperature the one that predicts best."""
        rows, labels = self.slow_rows if slow else self.fast_rows, self.labels
        if mirrored:
            assert self.mirrored is not None
            rows, labels = torch.cat([rows, self.mirrored]), torch.cat([labels, labels])
        own = closed_form.solve(rows, labels, units=self.classes, damping=strength)
        temperature = temperature or best_temperature(rows, labels, own, strength)
        views = self.slow if slow else self.fast
        return self.mean([rows @ own.T / temperature for rows, _ in views])

    def by_factor(self, means: Tensor) -> Tensor:
        """Probabilities by K-FAC's factor A of the head, in place of A of the memory."""
        head, curvature = self.learner.head, self.learner.transform.state_dict()
        assert head is not None
        a = curvature[f"curvature.averages.{head.name}.A"][0]
        ridge = USUAL[0] * a.diagonal().mean() * torch.eye(len(a), device=a.device)
        own = torch.linalg.solve(a + ridge, means.T / self.classes).T
        return self.mean([rows @ own.T / USUAL[1] for rows, _ in self.fast])

    def centred(self) -> Tensor:
        """Probabilities by features without their mean; the ridge leaves the bias alone."""
        targets = functional.one_hot(self.labels, self.classes).to(self.fast_rows.dtype)
        middle = self.means().mean(0)
        middle[-1] = 0
        rows = self.fast_rows - middle
        rows[:, -1] = 0
        own = closed_form.solve(rows, self.labels, units=self.classes, damping=USUAL[0])
        bias = torch.zeros_like(own)
        bias[:, -1] = 1 / targets.shape[1]
        own = own + bias
        return self.mean([(r - middle) @ own.T / USUAL[1] for r, _ in self.fast])

    def means(self) -> Tensor:
        """The mean features of each class in the memory."""
        targets = functional.one_hot(self.labels, self.classes).to(self.fast_rows.dtype)
        return targets.T @ self.fast_rows / targets.sum(0).clamp_min(1)[:, None]

    def all(self) -> dict[str, Tensor]:
        """Probabilities of each variant, by what it is."""
        slow, learned = (self.mean([z for _, z in views]) for views in (self.slow, self.fast))
        usual, both = self.solved(), self.solved(slow=True)
        found = {
            "learned heads": learned + slow,
            "learned, fast alone": learned,
            "learned, slow alone": slow,
            "closed form": usual + slow,
            "closed form, fast alone": usual,
            "closed form, slow alone": both,
            "closed form for both": usual + both,
            "closed form for both, and the slow learned head": 2 * usual + both + slow,
            "temperature by leaving one out": self.solved(temperature=None) + slow,
            "factor A of K-FAC": self.by_factor(self.means()) + slow,
            "factor A of K-FAC, running means": self.by_factor(self.running) + slow,
            "centred features": self.centred() + slow,
            "the same for both": self.solved(temperature=None)
            + self.solved(slow=True, temperature=None),
        }
        for t in TEMPERATURES:
            found[f"temperature {t:g}"] = self.solved(temperature=t) + slow
        for s in STRENGTHS:
            found[f"strength {s:g}"] = self.solved(strength=s) + slow
        if self.mirrored is not None:
            found["mirrored memory too"] = self.solved(mirrored=True) + slow
        return found


def best_temperature(rows: Tensor, labels: Tensor, own: Tensor, strength: float) -> float:
    """The temperature with the least cross-entropy of the memory, each sample left out once."""
    targets = functional.one_hot(labels, len(own)).to(rows.dtype)
    counts = targets.sum(0)
    weights = 1 / ((counts > 0).sum() * counts[labels])
    scaled = weights.sqrt()[:, None] * rows
    damping = strength * scaled.square().sum() / rows.shape[1]
    matrix = scaled.T @ scaled
    matrix.diagonal().add_(damping)
    leverage = (scaled * torch.linalg.solve(matrix, scaled.T).T).sum(1, keepdim=True)
    left_out = (rows @ own.T - leverage * targets) / (1 - leverage)

    def loss(temperature: float) -> float:
        losses = functional.cross_entropy(left_out / temperature, labels, reduction="none")
        return float(weights @ losses)

    return min(TEMPERATURES, key=loss)


def run(config: RunConfig, every: int) -> dict[str, dict[str, float]]:
    """The metrics of each variant over one stream."""
    device = config.resolve_device()
    stream: TaskStream = make_config_stream(config, device)
    learner = make_config_learner(config, device)
    running = RunningMeans()
    anytime: dict[str, AnytimeAccuracy] = defaultdict(AnytimeAccuracy)
    worst: dict[str, WorstCaseAccuracy] = defaultdict(WorstCaseAccuracy)
    for index, batch in enumerate(stream):
        learner.learn(batch.x, batch.y)
        running.follow(learner, batch.x, batch.y)
        if (index + 1) % every == 0:
            for name, accuracies in evaluate(learner, running, stream, batch.task).items():
                anytime[name].update(statistics.mean(accuracies))
                worst[name].update(accuracies)
            print(f"seed {config.seed}: {index + 1} batches", flush=True)
    return {
        name: {
            "aaa": round(anytime[name].compute(), 4),
            "wc_acc": round(own.compute(), 4),
            "validation_acc": round(statistics.mean(own.latest), 4),
        }
        for name, own in worst.items()
    }


@torch.no_grad()
def evaluate(
    learner: Learner, running: RunningMeans, stream: TaskStream, task: int
) -> dict[str, list[float]]:
    """The accuracy of each variant on the validation data of each task so far."""
    parts = [stream.validation(index) for index in range(task + 1)]
    x = learner.intake.prepare(torch.cat([x for x, _ in parts]).to(learner.device))
    assert isinstance(x, Tensor)
    y = torch.cat([y for _, y in parts]).to(learner.device)
    views = [x, x.flip(-1)] if learner.mirrors != "no" else [x]
    labels = torch.tensor(learner.classes, device=learner.device)
    with learner.context.evaluating():
        answers = Heads(learner, running, views).all()
    hits = {name: labels[own.argmax(1)] == y for name, own in answers.items()}
    sizes = [len(y) for _, y in parts]
    return {n: [float(h.double().mean()) for h in own.split(sizes)] for n, own in hits.items()}


def main() -> None:
    """Parse, run, store, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("benchmark")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--store", type=Path)
    given = parser.parse_args()
    store = given.store or Path(f"results/settings/closed-form-{given.benchmark}.json")
    about = describe_process(torch.device(given.device))
    made = {key: about[key] for key in ("command", "device", "versions", "git", "time")}
    data = json.loads(store.read_text()) if store.is_file() else {"made": made, "rows": {}}
    for seed in given.seeds:
        config = RunConfig(
            benchmark=given.benchmark,
            method="ocar-slow",
            seed=seed,
            max_tasks=given.tasks,
            device=given.device,
            data_root=given.data,
        )
        for name, metrics in run(config, given.every).items():
            data["rows"].setdefault(name, {})[str(seed)] = metrics
        store.write_text(json.dumps(data, indent=1) + "\n")
    for name, seeds in data["rows"].items():
        means = (statistics.mean(own[m] for own in seeds.values()) for m in METRICS)
        print(" ".join(f"{100 * mean:6.1f}" for mean in means), name)


if __name__ == "__main__":
    main()
