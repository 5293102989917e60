"""All measurements by name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.concurrent import measure_concurrent
from benchmarks.floor import measure_floor
from benchmarks.graphs import measure_graphs
from benchmarks.guard import measure_guard
from benchmarks.libraries import measure_nngeometry
from benchmarks.mlp import measure_mlp
from benchmarks.parts import measure_parts
from benchmarks.results import Result
from benchmarks.saving import measure_saving
from benchmarks.serving import measure_serving
from benchmarks.setup import Setup
from benchmarks.steps import measure_steps
from ocar.errors import ConfigError


@dataclass(frozen=True)
class Group:
    """Measurements that belong together."""

    measure: Callable[[Setup], Iterator[Result]]
    """Does them, and yields each result when it is there."""

    about: str
    """What they are, in a line."""


GROUPS = {
    "steps": Group(measure_steps, "a stream batch of OCAR against one of ER"),
    "nngeometry": Group(measure_nngeometry, "factors and inverses against nngeometry's"),
    "captured": Group(measure_graphs, "steps as CUDA graphs against eager ones"),
    "concurrent": Group(measure_concurrent, "five runs at once on a GPU against one"),
    "mlp": Group(measure_mlp, "a small stream against a bare loop and Avalanche"),
    "serving": Group(measure_serving, "learning while other threads ask, against learning alone"),
    "parts": Group(measure_parts, "where the time of an OCAR batch goes"),
    "floor": Group(measure_floor, "an OCAR batch against what the device could do"),
    "guard": Group(measure_guard, "a stream batch with the guard against one without"),
    "saving": Group(measure_saving, "what part of a run's time goes into checkpoints"),
}
"""What there is to measure."""


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The groups that are meant, in their order; all if none is named.

    Raises:
        ConfigError: There is no such group.
    """
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise ConfigError(f"Unknown measurement {unknown[0]!r}. There are {', '.join(GROUPS)}.")
    return tuple(name for name in GROUPS if not names or name in names)


def measure(setup: Setup, only: Sequence[str] = ()) -> Iterator[Result]:
    """Measure.

    Args:
        setup: Where, and how thoroughly.
        only: Names of groups; all by default.

    Yields:
        Each result when it is there.

    Raises:
        ConfigError: There is no such group.
    """
    for name in check_names(only):
        yield from GROUPS[name].measure(setup)
        gc.collect()
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
