"""A learner and a shortened stream for the runs of a figure."""

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
"""Called with the number of batches done and their total; 0 if the total is unknown."""


def quiet(done: int, total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The benchmark, seed and length of the runs of a figure."""

    benchmark: str  # name of the benchmark
    seed: int = 0
    batches: int | None = None  # complete batches of each task to keep; all by default
    tasks: int | None = None  # tasks to keep; all by default
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings by method, which override those selected for the benchmark."""

    data_root: Path | None = None  # folder of the data sets

    def __post_init__(self) -> None:
        valid = self.batches is None or self.batches >= 1
        require("batches", self.batches, valid, "at least 1, or None for all")

    def config(self, method: str, **settings: Any) -> RunConfig:
        """The configuration of a run; ``settings`` override all others."""
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
        """The stream of a configuration, with the batches to keep."""
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
        """What else determines the numbers of one run, in plain values."""
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
        stream: The whole stream, which answers everything else.
        batches: Batches of each task to keep.
    """

    def __init__(self, stream: TaskStream, batches: int) -> None:
        self.stream = stream
        self.batches = batches
        self.tasks = stream.tasks
        self.training, self.validation, self.test = stream.training, stream.validation, stream.test
        self.state_dict, self.load_state_dict = stream.state_dict, stream.load_state_dict

    def __iter__(self) -> Iterator[StreamBatch]:
        """The batches, with new indices."""
        index, task, count = 0, -1, 0
        for batch in self.stream:
            if batch.task != task:
                task, count = batch.task, 0
            if count == self.batches:
                continue
            count += 1
            yield replace(batch, index=index, last=batch.last or count == self.batches)
            index += 1

    def __len__(self) -> int:
        """Number of batches, if every task has that many."""
        return self.tasks * self.batches


def task_accuracy(learner: Learner, data: Labelled) -> float:
    """Accuracy on some samples; classes that were never seen count as wrong."""
    x, y = data
    labels = torch.tensor(learner.classes)[learner.predict(x).argmax(1)]
    return float((labels == y).double().mean())
