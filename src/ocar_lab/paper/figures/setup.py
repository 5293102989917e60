"""A learner on a shortened stream, for the runs of a figure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from ocar.config import require
from ocar.errors import ConfigError
from ocar.evaluate import evaluate
from ocar.evaluate.measure import hits
from ocar.events import Event, Learned
from ocar.learner import Learner
from ocar.methods.presets import PRESETS
from ocar.streams.base import Labelled, StreamBatch, TaskStream
from ocar_lab.experiment import RunConfig
from ocar_lab.experiment.parts import make_config_learner, make_config_stream
from ocar_lab.tune.preset import read_preset

CPU = torch.device("cpu")

Listen = Callable[[int, int], object]
"""Called with the number of batches done and their total; 0 if the total is unknown."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the runs of a figure have in common."""

    benchmark: str = "split-digits"
    """The benchmark; the paper's is split-mnist, and split-cifar100 for the ratio."""

    seed: int = 0
    """Seed of the runs."""

    batches: int | None = None
    """Batches of each task to keep, from its start; all by default."""

    tasks: int | None = None
    """Tasks to keep, from the first; all by default."""

    preset: tuple[Path, ...] = ()
    """Files with the settings of methods, as ocar tune writes them."""

    data_root: Path | None = None
    """Folder of the data sets; by default OCAR_DATA or the user's data folder."""

    def __post_init__(self) -> None:
        valid = self.batches is None or self.batches >= 1
        require("batches", self.batches, valid, "at least 1, or None for all")

    @cached_property
    def presets(self) -> dict[str, dict[str, Any]]:
        """Settings by method from the preset files.

        Raises:
            ConfigError: A file is not a preset, is of another benchmark, or two are of one method.
        """
        found: dict[str, dict[str, Any]] = {}
        for path in self.preset:
            preset = read_preset(path)
            wrong = f"Invalid --preset {path}:"
            if preset.benchmark != self.benchmark or preset.transform is not None:
                raise ConfigError(
                    f"{wrong} it is for {preset.name} on {preset.benchmark}. "
                    f"Must be for a method on {self.benchmark}."
                )
            if preset.method in found:
                raise ConfigError(f"{wrong} another file is for {preset.method} too.")
            found[preset.method] = dict(preset.settings)
        return found

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

    def run(
        self, config: RunConfig, listen: Listen, *, every: int | Literal["task"] = "task"
    ) -> tuple[Learner, TaskStream, Iterator[Event]]:
        """A learner, its stream, and the events while it learns and is evaluated."""
        stream, learner = self.stream(config), self.learner(config)
        total = operator.length_hint(stream)

        def events() -> Iterator[Event]:
            for event in evaluate(learner, stream, every=every):
                if isinstance(event, Learned):
                    listen(event.index + 1, total)
                yield event

        return learner, stream, events()

    def describe(self) -> dict[str, Any]:
        """What all runs have in common, in plain values."""
        return {
            "benchmark": self.benchmark,
            "tasks": self.tasks,
            "batches of each task": self.batches,
        }

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
    """A stream with the first complete batches of each task; the whole one answers all else."""

    def __init__(self, stream: TaskStream, batches: int) -> None:
        self.stream, self.batches, self.tasks = stream, batches, stream.tasks
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
    return float(hits(learner, *data).double().mean())
