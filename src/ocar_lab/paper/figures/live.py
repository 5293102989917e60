"""A learner and a stream for a figure, and the walk of one through the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ocar.config import require
from ocar.learner import Learner
from ocar.methods.presets import PRESETS
from ocar.streams.base import Labelled, StreamBatch, TaskStream
from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.parts import make_config_learner, make_config_stream

CPU = torch.device("cpu")

Listen = Callable[[int, int], object]
"""Told how many batches are done, and of how many; 0 if that is not known."""


def quiet(done: int, total: int) -> None:
    """Listen to nothing."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where the runs of a figure are made: a benchmark, a seed, a number of batches."""

    benchmark: str
    """Name of the benchmark."""

    seed: int = 0
    """Seed of the runs."""

    batches: int | None = None
    """Complete batches that are kept of each task, from its start; all by default."""

    tasks: int | None = None
    """Tasks that are kept, from the first; all by default."""

    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings by method, over those selected for the benchmark."""

    data_root: Path | None = None
    """Where the data sets are."""

    def __post_init__(self) -> None:
        valid = self.batches is None or self.batches >= 1
        require("batches", self.batches, valid, "at least 1, or None for all")

    def config(self, method: str, **settings: Any) -> RunConfig:
        """The configuration of a run.

        Args:
            method: Name of the method.
            **settings: Settings over all others.
        """
        return RunConfig(
            benchmark=self.benchmark,
            method=method,
            settings={**self.presets.get(method, {}), **settings},
            seed=self.seed,
            max_tasks=self.tasks,
            device="cpu",
            data_root=self.data_root,
        )

    def stream(self, config: RunConfig) -> TaskStream:
        """The stream of a configuration, with the batches that are kept."""
        whole = make_config_stream(config, CPU)
        return whole if self.batches is None else Shortened(whole, self.batches)

    def learner(self, config: RunConfig) -> Learner:
        """The learner of a configuration."""
        return make_config_learner(config, CPU)

    def describe(self) -> dict[str, Any]:
        """What all runs have in common, in plain values."""
        kept = {"tasks": self.tasks, "batches of each task": self.batches}
        return {"benchmark": self.benchmark, **kept}

    def describe_run(self, config: RunConfig) -> dict[str, Any]:
        """What decides the numbers of one run beside that, in plain values."""
        selected = PRESETS.get(config.benchmark, {}).get(config.name, {})
        return {
            "method": config.name,
            "seed": config.seed,
            "selected": {**selected, **config.settings},
            "hash": config.hash(),
        }


class Shortened:
    """A stream with the first complete batches of each task.

    Args:
        stream: The whole stream.
        batches: How many to keep of each task.
    """

    def __init__(self, stream: TaskStream, batches: int) -> None:
        self.stream = stream
        self.batches = batches

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.stream.tasks

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches, numbered anew."""
        index, task, count = 0, -1, 0
        for batch in self.stream:
            if batch.task != task:
                task, count = batch.task, 0
            if count == self.batches:
                continue
            count += 1
            yield replace(batch, index=index, last=batch.last or count == self.batches)
            index += 1

    def training(self, task: int, /) -> Labelled:
        """All that one task gives to learn from in the whole stream."""
        return self.stream.training(task)

    def validation(self, task: int, /) -> Labelled:
        """Validation samples of one task."""
        return self.stream.validation(task)

    def test(self, task: int, /) -> Labelled:
        """Test samples of one task."""
        return self.stream.test(task)

    def state_dict(self) -> dict[str, int]:
        """Where the whole stream stands."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, int], /) -> None:
        """Go to where the whole stream stood."""
        self.stream.load_state_dict(state)

    def __len__(self) -> int:
        """Batches, if every task has that many."""
        return self.tasks * self.batches


def task_accuracy(learner: Learner, data: Labelled) -> float:
    """Accuracy on some samples; classes that were never seen count as wrong."""
    x, y = data
    labels = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    return float((labels == y).double().mean())
