"""How fast the package is: ratios of two sides that are measured in turns, in one process.

    for result in measure(Setup(device=torch.device("cpu")), only=("mlp",)):
        print(result)

A time in seconds says more about a machine and its load than about a program, so that every side is
measured together with another one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.concurrent import measure_concurrent
from benchmarks.floor import measure_floor
from benchmarks.libraries import measure_nngeometry
from benchmarks.mlp import measure_mlp, measure_serving
from benchmarks.parts import measure_parts
from benchmarks.results import SCHEMA, Breakdown, Part, Ratio, Result, Skipped, Target, document
from benchmarks.saving import measure_saving
from benchmarks.setup import Setup, choose_device
from benchmarks.steps import measure_graphs, measure_guard, measure_steps
from ocar.errors import ConfigError

__all__ = [
    "GROUPS",
    "SCHEMA",
    "Breakdown",
    "Group",
    "Part",
    "Ratio",
    "Result",
    "Setup",
    "Skipped",
    "Target",
    "check_names",
    "choose_device",
    "document",
    "measure",
]


@dataclass(frozen=True)
class Group:
    """Measurements that belong together: a function that yields results, and a line about it."""

    measure: Callable[[Setup], Iterator[Result]]
    about: str


GROUPS = {
    "steps": Group(measure_steps, "a stream batch of OCAR against one of ER"),
    "nngeometry": Group(measure_nngeometry, "factors and inverses against nngeometry's"),
    "captured": Group(measure_graphs, "steps as CUDA graphs against eager ones"),
    "concurrent": Group(measure_concurrent, "five runs at once on a GPU against one"),
    "mlp": Group(measure_mlp, "a small stream against a bare loop and Avalanche"),
    "serving": Group(measure_serving, "learning while threads ask for predictions"),
    "parts": Group(measure_parts, "where the time of an OCAR batch goes"),
    "floor": Group(measure_floor, "an OCAR batch against the limits of the device"),
    "guard": Group(measure_guard, "a stream batch with the guard against one without"),
    "saving": Group(measure_saving, "the share of a run's time that goes into checkpoints"),
}
"""The groups by name."""


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The named groups in their order; all if none is named.

    Raises:
        ConfigError: A name is unknown.
    """
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise ConfigError(f"Unknown measurement {unknown[0]!r}. There are {', '.join(GROUPS)}.")
    return tuple(name for name in GROUPS if not names or name in names)


def measure(setup: Setup, only: Sequence[str] = ()) -> Iterator[Result]:
    """Measure some groups, all by default, and yield each result as soon as it is known.

    Raises:
        ConfigError: A name is unknown.
    """
    for name in check_names(only):
        yield from GROUPS[name].measure(setup)
        gc.collect()
        if setup.on_gpu:
            torch.cuda.empty_cache()
