"""How fast the package is: ratios of two sides that are measured in turns, in one process.

    for result in measure(Setup(device=torch.device("cpu")), only=("mlp",)):
        print(result)

A time in seconds says more about a machine and its load than about a program, so that every side is
measured together with another one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks.concurrent import measure_concurrent
from benchmarks.floor import measure_floor
from benchmarks.large import measure_large
from benchmarks.libraries import measure_nngeometry
from benchmarks.mlp import measure_mlp, measure_serving
from benchmarks.parts import measure_parts
from benchmarks.results import SCHEMA, Breakdown, Part, Ratio, Result, Skipped, Target, document
from benchmarks.saving import measure_saving
from benchmarks.setup import Setup, choose_device
from benchmarks.steps import measure_graphs, measure_guard, measure_slow, measure_steps
from benchmarks.wide import measure_wide
from ocar.errors import ConfigError

__all__ = [
    "GROUPS",
    "SCHEMA",
    "Breakdown",
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


GROUPS: dict[str, Callable[[Setup], Iterator[Result]]] = {
    "steps": measure_steps,
    "nngeometry": measure_nngeometry,
    "recorded": measure_graphs,
    "concurrent": measure_concurrent,
    "mlp": measure_mlp,
    "serving": measure_serving,
    "parts": measure_parts,
    "floor": measure_floor,
    "guard": measure_guard,
    "slow": measure_slow,
    "saving": measure_saving,
    "wide": measure_wide,
    "large": measure_large,
}
"""The measurements by name: functions that yield results."""


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
    """Measure some groups, all by default, and yield each result as soon as it is known."""
    for name in check_names(only):
        yield from GROUPS[name](setup)
        gc.collect()
        if setup.on_gpu:
            torch.cuda.empty_cache()
