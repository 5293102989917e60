"""The configuration of one run, and the name of its folder.

Everything that decides the numbers is the *identity* of a run: benchmark, method, every setting of
the method, evaluation interval, limits, kind of device. Its hash is part of the folder's name, so
that two configurations never share a folder, and the same command finds its folder again. Where
data lie or how often a run is saved is not part of the identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from ocar import accel
from ocar.config import CUSTOM, require, require_one_of, to_plain
from ocar.errors import ConfigError, MissingSettingError
from ocar.methods.presets import PRESETS
from ocar.methods.registry import (
    METHODS,
    TRANSFORMS,
    make_settings,
    preset_settings,
    usual_interval,
)
from ocar.methods.settings import LearnerSettings
from ocar.methods.transform import TransformSettings
from ocar.streams.benchmarks import get_benchmark
from ocar.streams.split import Splits
from ocar_lab.plugins import load_plugins, named_plugins
from ocar_lab.runs.reading import MOST_SEED
from ocar_lab.runs.results import identity_hash
from ocar_lab.runs.versions import ADDED

EXAMPLES = {"lr": "0.05", "damping": "0.1", "ema": "0.1", "strength": "1"}
"""A value of each setting that has no default, for a message."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """A method on a benchmark: the fields that runs and studies share."""

    benchmark: str
    """Name of the benchmark."""

    method: str
    """Name of the method."""

    transform: str | None = None
    """Gradient transform to use with the method's objective, such as ocar; by default the method's
    own."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method and its transform, over those of the benchmark's preset. A study does
    not search them."""

    splits: Splits | None = None
    """Class order and validation data: published for those of the paper's runs, which have seeds 0
    to 4, own for others. By default published on Split-CIFAR100 and Split-TinyImageNet."""

    data_root: Path | None = None
    """Folder of the data sets; by default OCAR_DATA or the user's data folder."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto is the GPU if there is one."""

    plugins: tuple[str, ...] = field(default_factory=named_plugins)
    """Modules to import first, which register names of their own."""

    def __post_init__(self) -> None:
        load_plugins(self.plugins)
        object.__setattr__(self, "settings", dict(self.settings))
        object.__setattr__(self, "plugins", tuple(self.plugins))

    @property
    def name(self) -> str:
        """Name of the method with its transform: a registered one if there is one."""
        return method_name(self.method, self.transform)


@dataclass(frozen=True, kw_only=True)
class RunConfig(MethodConfig):
    """One method on one benchmark with one seed; the fields are the flags of ``ocar run``."""

    seed: int = 0
    """Seed of all that is random: class order, validation data, weights, memory."""

    iid: bool = False
    """All classes in one task, the benchmark's upper reference."""

    blurry: float = 0.0
    """Share of each task's samples that are swapped with those of other tasks."""

    every: int | Literal["task"] | None = None
    """Batches between two evaluations, or task to evaluate after each task. By default after every
    batch, as in the protocol, but after each task for a method that trains for each prediction."""

    defaults: bool = False
    """Use the defaults of the method, not the settings that were selected for the benchmark; memory
    and batches are the benchmark's."""

    online: bool = False
    """Also predict each batch before it is learned."""

    probe: bool = True
    """At the end, also fit a linear classifier on the features (Probed Acc); not in regression."""

    max_tasks: int | None = None
    """Stop after this many tasks; test data covers these tasks only. As many as the benchmark has,
    or more, means all."""

    max_batches: int | None = None
    """Stop after this many batches; test data covers the tasks that have begun."""

    record: bool = True
    """On a GPU, record the steps as CUDA graphs: equal up to rounding, many times faster."""

    deterministic: bool = False
    """On a GPU, use only algorithms that are bit-exact from run to run. A CPU always is."""

    guard: bool = True
    """Back off from batches that would spoil the learner, and say so."""

    threads: int | None = None
    """Threads of a run on the CPU; by default PyTorch's number, and for ocar run the cores divided
    by the workers, or 1 on a Ray cluster. A resumed run keeps its number of threads, since it can
    change the last bits of a sum."""

    checkpoint_every: int | None = None
    """Save after this many batches; by default as often as costs less than 2 % of the time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        benchmark = get_benchmark(self.benchmark)
        benchmark.choose_splits(self.splits)
        METHODS.find(self.method)
        if self.transform is not None:
            TRANSFORMS.find(self.transform)
        require("seed", self.seed, 0 <= self.seed <= MOST_SEED, "from 0 to 2**63 - 1")
        require("blurry", self.blurry, 0 <= self.blurry <= 1, "in [0, 1]")
        valid = self.every in (None, "task") or (isinstance(self.every, int) and self.every >= 1)
        require("every", self.every, valid, "at least 1, 'task' or None")
        for name in ("max_tasks", "max_batches", "threads", "checkpoint_every"):
            value = getattr(self, name)
            require(name, value, value is None or value >= 1, "at least 1, or None")
        if (self.max_tasks or 0) >= benchmark.tasks:  # all of them: the same configuration
            object.__setattr__(self, "max_tasks", None)
        require_one_of("device", self.device, ("auto", "cpu", "cuda"))
        if "seed" in self.settings:
            raise ConfigError("Invalid settings: seed. It is a field of the configuration.")
        self.resolve()

    @property
    def label(self) -> str:
        """Name of the method in tables and folders."""
        return f"{self.name}-iid" if self.iid else self.name

    @property
    def interval(self) -> int | Literal["task"]:
        """Evaluation interval in batches, or ``"task"``."""
        return usual_interval(self.method) if self.every is None else self.every

    @property
    def chosen_splits(self) -> Splits:
        """The splits, by default those of the benchmark."""
        return get_benchmark(self.benchmark).choose_splits(self.splits)

    def resolve(self) -> tuple[LearnerSettings, TransformSettings | None]:
        """Every setting of the method and of its transform.

        Raises:
            ConfigError: A setting is unknown, missing, out of range, or cannot be written down.
        """
        values = self._base()
        values |= {**self.settings, "seed": self.seed}
        try:
            own, transform = make_settings(self.method, transform=self.transform, **values)
        except MissingSettingError as error:
            raise self._missing(error.names) from None
        plain = to_plain(own).items()
        custom = [n for n, v in plain if isinstance(v, Mapping) and v.get("kind") == CUSTOM]
        if custom:
            raise ConfigError(
                f"Invalid settings: {', '.join(custom)}. A run folder holds no functions; use "
                "ocar.Normalize and ocar.CropFlip, or ocar.evaluate with a learner of your own."
            )
        return own, transform

    def _missing(self, names: tuple[str, ...]) -> MissingSettingError:
        """The error for settings that neither the benchmark nor the method has a value for."""
        flags = [f"--{name.replace('_', '-')} {EXAMPLES.get(name, 'VALUE')}" for name in names]
        more = [] if self.transform is None else ["--transform", self.transform]
        more += [word for plugin in self.plugins for word in ("--plugin", plugin)]
        search = f"search: {' '.join(['ocar tune', self.benchmark, self.method, *more])}"
        selected = self.defaults and self.name in PRESETS.get(self.benchmark, {})
        return MissingSettingError(
            f"{self.name} has no default for {' and '.join(names)}"
            + ("" if selected else f", and no settings were selected for it on {self.benchmark}")
            + f". Give {' '.join(flags)}, or {'leave out --defaults.' if selected else search}",
            names,
        )

    def resolve_device(self) -> torch.device:
        """The device to use; raises ``ConfigError`` if there is no such device."""
        return accel.choose_device(self.device)

    def identity(self) -> dict[str, Any]:
        """All that decides the numbers except the seed, in plain values."""
        own, transform = self.resolve()
        settings, rewriting = to_plain(own), {} if transform is None else to_plain(transform)
        del settings["seed"]
        if own.lr is not None:
            rewriting.pop("divergence", None)  # it chooses a learning rate
        for values in (settings, rewriting):
            for name in [n for n, v in ADDED.items() if values.get(n, MISSING) == v]:
                del values[name]
        return {
            "benchmark": self.benchmark,
            "method": self.name,
            "settings": settings,
            "transform": None if transform is None else rewriting,
            "iid": self.iid,
            "blurry": self.blurry,
            "every": self.interval,
            "online": self.online,
            "probe": self.probe,
            "max_tasks": self.max_tasks,
            "max_batches": self.max_batches,
            # On a cluster, a device that is named may be on another machine.
            "device": self.resolve_device().type if self.device == "auto" else self.device,
            # The guard changes nothing in a healthy run: only its absence is part of the identity.
            **({} if self.guard else {"guard": False}),
            # Earlier versions had one kind of splits, without a name.
            **({} if self.chosen_splits == "own" else {"splits": self.chosen_splits}),
        }

    def _base(self) -> dict[str, Any]:
        """The settings over which the given ones are laid."""
        if self.defaults:
            return get_benchmark(self.benchmark).learner_settings()
        return base_settings(self.benchmark, self.method, self.transform)

    def changed(self) -> dict[str, Any]:
        """Settings and options that differ from the preset and the protocol, in plain values."""
        own, transform = self.resolve()
        chosen = vars(own) | ({} if transform is None else vars(transform))
        usual = _defaults(own) | _defaults(transform)
        usual |= self._base()
        names = [name for name in self.settings if chosen[name] != usual.get(name, MISSING)]
        plain = to_plain(own) | ({} if transform is None else to_plain(transform))
        own_names = ("blurry", "max_tasks", "max_batches", "guard", "defaults")
        protocol = {f.name: f.default for f in fields(self) if f.name in own_names}
        others = {n: getattr(self, n) for n, v in protocol.items() if getattr(self, n) != v}
        if self.interval != usual_interval(self.method):
            others["every"] = self.interval
        if self.chosen_splits != get_benchmark(self.benchmark).splits:
            others["splits"] = self.chosen_splits
        return {name: plain[name] for name in names} | others

    def folder(self) -> Path:
        """Path of the run folder, relative to the folder of all runs."""
        return Path(self.benchmark) / self.label / self.hash() / f"seed-{self.seed}"

    def hash(self) -> str:
        """Ten hexadecimal digits, the hash of the identity."""
        return identity_hash(self.identity())


def method_name(method: str, transform: str | None) -> str:
    """Name of a method with another transform: a registered one if there is one."""
    if transform is None:
        return method
    wanted = (METHODS[method].settings, TRANSFORMS[transform])
    known = (n for n, m in METHODS.items() if (m.settings, m.transform) == wanted)
    return next(known, f"{method}-with-{transform}")


def base_settings(benchmark: str, method: str, transform: str | None = None) -> dict[str, Any]:
    """Settings that a benchmark fixes and, if there is a preset for the method, its settings."""
    name = method_name(method, transform)
    if name in PRESETS.get(benchmark, {}):
        return preset_settings(benchmark, name)
    protocol = get_benchmark(benchmark)
    settings = protocol.learner_settings()
    kind = METHODS[method].transform if transform is None else TRANSFORMS[transform]
    if kind is not None:
        stretch = {"increments": protocol.increments, "n_new": protocol.n_new}
        settings |= {f.name: stretch[f.name] for f in fields(kind) if f.name in stretch}
    return settings


def _defaults(settings: LearnerSettings | TransformSettings | None) -> dict[str, Any]:
    return {} if settings is None else {f.name: f.default for f in fields(settings)}
