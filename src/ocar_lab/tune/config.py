"""The configuration of one study: what is tuned, on what, and what counts as good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from ocar.config import require, to_plain
from ocar.errors import ConfigError
from ocar.methods.presets import PRESETS
from ocar.methods.spaces import Choice, Space
from ocar.streams.benchmarks import get_benchmark
from ocar_lab.experiment.config import MethodConfig, RunConfig
from ocar_lab.runs.versions import ADDED
from ocar_lab.tune.pruning import RULE
from ocar_lab.tune.spaces import search_space

TASKS = 4
"""The paper tunes on the first four tasks."""

ACCURACY = "validation accuracy"

STARTUP = 10
"""Trials that are drawn at random before the estimator has data; Optuna's own number."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig(MethodConfig):
    """A search for the settings of one method; the fields are the flags of ``ocar tune``."""

    tasks: int | None = None
    """Tasks that a trial learns; by default 4, and in regression all."""

    seed: int = 0
    """Seed of every trial's run and of the search."""

    try_preset: bool = True
    """Try the settings of the benchmark's preset first, if there is one for the method."""

    prune: bool = True
    """Stop trials early that are worse than most after the same batch."""

    record: bool = True
    """On a GPU, record the steps as CUDA graphs."""

    threads: int | None = None
    """Threads of each trial on the CPU; by default PyTorch's number, and for ocar tune the cores
    divided by the workers, or 1 on a Ray cluster."""

    max_batches: int | None = None
    """End each trial after this many batches, for a quick look."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("tasks", self.tasks, self.tasks is None or self.tasks >= 1, "at least 1, or None")
        self.run_config(self.example())  # checks the other fields
        if not self.space:
            raise ConfigError(f"Nothing to search: all searched settings of {self.name} are given.")

    @cached_property
    def regression(self) -> bool:
        """Whether the benchmark has targets instead of classes."""
        return get_benchmark(self.benchmark).kind == "regression"

    @property
    def objective(self) -> str:
        """The value of a trial, in words."""
        after = f"after {self.last_task + 1} tasks"
        return f"L_p + L_s {after}, less is better" if self.regression else f"{ACCURACY} {after}"

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Which values are better."""
        return "minimize" if self.regression else "maximize"

    @property
    def last_task(self) -> int:
        """Index of the task after which a trial has its value, unless batches are limited."""
        tasks = get_benchmark(self.benchmark).tasks
        return min(tasks, self.tasks or (tasks if self.regression else TASKS)) - 1

    @cached_property
    def space(self) -> Space:
        """Where to search."""
        whole = search_space(self.benchmark, self.method, self.transform)
        return {name: part for name, part in whole.items() if name not in self.settings}

    @cached_property
    def first(self) -> dict[str, Any]:
        """Settings of the first trial; empty if it is drawn like the others."""
        known = self.transform is None and self.method in PRESETS.get(self.benchmark, {})
        if not self.try_preset or not known:
            return {}
        values = ADDED | self._values({})
        found = {name: values[name] for name in self.space}
        return found if all(found[name] in part for name, part in self.space.items()) else {}

    def example(self) -> dict[str, Any]:
        """One point of the space."""
        return {
            name: part.values[0]
            if isinstance(part, Choice)
            else (int(part.low) if part.whole else part.low)
            for name, part in self.space.items()
        }

    def run_config(self, found: Mapping[str, Any]) -> RunConfig:
        """The run of one trial.

        Its value is an evaluation after the last task, so that it is evaluated after each task
        only. In regression it is evaluated after each batch, since L_s sums over batches.
        """
        shared = {f.name: getattr(self, f.name) for f in fields(RunConfig) if hasattr(self, f.name)}
        return RunConfig(
            **shared
            | {
                "settings": {**self.settings, **found},
                "every": 1 if self.regression else "task",
                "probe": False,
                "max_tasks": self.last_task + 1,
                "guard": False,  # the search should know which settings diverge
            }
        )

    def _values(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Every setting of a run, its own and its transform's."""
        run = self.run_config(found).identity()
        return run["settings"] | (run["transform"] or {})

    def identity(self) -> dict[str, Any]:
        """All that decides what a study finds except the number of trials, in plain values."""
        fixed = self._values(self.example())
        run = self.run_config(self.example()).identity()
        return {
            "benchmark": self.benchmark,
            "method": self.name,
            "seed": self.seed,
            "tasks": self.last_task + 1,
            "max_batches": self.max_batches,
            "objective": "L_p + L_s" if self.regression else ACCURACY,
            "space": {name: to_plain(part) for name, part in self.space.items()},
            "settings": {name: v for name, v in fixed.items() if name not in self.space},
            "search": {
                "sampler": "TPE",
                "startup": STARTUP,
                "pruning": RULE if self.prune else None,
                "first": self.first or None,
            },
            "device": run["device"],
            **({"splits": run["splits"]} if "splits" in run else {}),
        }
