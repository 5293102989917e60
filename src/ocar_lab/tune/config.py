"""The configuration of one study: what is tuned, on what, and what counts as good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ocar.config import require, to_plain
from ocar.errors import ConfigError
from ocar.methods.presets import PRESETS
from ocar.streams.benchmarks import get_benchmark
from ocar_lab.experiment.config import RunConfig, method_name
from ocar_lab.tune.pruning import RULE
from ocar_lab.tune.spaces import Choice, Space, search_space

TASKS = 4
"""The paper looks at the first four tasks."""

ACCURACY = "validation accuracy"

STARTUP = 10
"""Trials drawn at random before the estimator has something to go by; Optuna's own number."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """A search for the settings of one method on one benchmark."""

    benchmark: str
    """Name of the benchmark."""

    method: str
    """Name of the method."""

    transform: str | None = None
    """Gradient transform to use with the method's loss, instead of the method's own."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are given; what is named here is not searched."""

    seed: int = 0
    """Seed of every trial's run and of the search itself."""

    tasks: int | None = None
    """Tasks that a trial learns; by default four, the paper's, and in regression all."""

    max_batches: int | None = None
    """End each trial after so many batches, for a first look."""

    prune: bool = True
    """Whether to stop trials early that do worse than most after the same batch."""

    try_preset: bool = True
    """Whether the first trial takes the settings of the benchmark's preset for the method, if there
    is one: then what is found is no worse."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; ``"auto"`` is the GPU if there is one."""

    capture: bool = True
    """On a GPU, capture the steps as CUDA graphs."""

    threads: int | None = None
    """Threads of each trial on the CPU."""

    data_root: Path | None = None
    """Where the data sets are; by default ``OCAR_DATA`` or the user's data folder."""

    def __post_init__(self) -> None:
        require("tasks", self.tasks, self.tasks is None or self.tasks >= 1, "at least 1, or None")
        object.__setattr__(self, "settings", dict(self.settings))
        self.run_config(self.example())  # refuses what is wrong with the rest
        if not self.space:
            raise ConfigError(
                f"Nothing to search: the settings of {self.name} that would be are all given."
            )

    @property
    def name(self) -> str:
        """The method with its transform."""
        return method_name(self.method, self.transform)

    @cached_property
    def regression(self) -> bool:
        """Whether the benchmark has targets and not classes."""
        return get_benchmark(self.benchmark).kind == "regression"

    @property
    def objective(self) -> str:
        """What a trial is judged by, in words."""
        after = f"after {self.last_task + 1} tasks"
        return f"L_p + L_s {after}, less is better" if self.regression else f"{ACCURACY} {after}"

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Which values are better."""
        return "minimize" if self.regression else "maximize"

    @property
    def last_task(self) -> int:
        """The task after which a trial is judged, if batches are not limited."""
        tasks = get_benchmark(self.benchmark).tasks
        return min(tasks, self.tasks or (tasks if self.regression else TASKS)) - 1

    @cached_property
    def space(self) -> Space:
        """Where to search."""
        whole = search_space(self.benchmark, self.method, self.transform)
        return {name: part for name, part in whole.items() if name not in self.settings}

    @cached_property
    def first(self) -> dict[str, Any]:
        """What the first trial tries; empty if that is drawn like the others."""
        known = self.transform is None and self.method in PRESETS.get(self.benchmark, {})
        if not self.try_preset or not known:
            return {}
        values = self._values(self.settings)
        found = {name: values[name] for name in self.space}
        return found if all(found[name] in part for name, part in self.space.items()) else {}

    def _values(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Every setting of a run with these, its own and its transform's."""
        run = self._run_config(settings).identity()
        return run["settings"] | (run["transform"] or {})

    def example(self) -> dict[str, Any]:
        """One point of the space."""
        return {
            name: part.values[0]
            if isinstance(part, Choice)
            else (int(part.low) if part.whole else part.low)
            for name, part in self.space.items()
        }

    def run_config(self, found: Mapping[str, Any]) -> RunConfig:
        """The run that tries some settings.

        What counts is its evaluation after the last task, so it is not evaluated after every
        batch, which is much faster; but in regression it is, since L_s is a sum over these.

        Args:
            found: A value for each setting of the space.
        """
        return self._run_config({**self.settings, **found})

    def _run_config(self, settings: Mapping[str, Any]) -> RunConfig:
        return RunConfig(
            benchmark=self.benchmark,
            method=self.method,
            transform=self.transform,
            settings=dict(settings),
            seed=self.seed,
            every=1 if self.regression else "task",
            probe=False,
            max_tasks=self.last_task + 1,
            max_batches=self.max_batches,
            device=self.device,
            capture=self.capture,
            guard=False,  # settings with which learning diverges are to be known
            threads=self.threads,
            data_root=self.data_root,
        )

    def identity(self) -> dict[str, Any]:
        """All that decides what a study finds, in plain values, but for the number of trials."""
        example = {**self.settings, **self.example()}
        fixed = self._values(example)
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
            "device": self._run_config(example).identity()["device"],
        }
