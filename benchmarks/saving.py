"""The share of a run's time that goes into checkpoints, saved as often as by default.

Three runs as ``ocar run`` does them: the fastest steps, a small network with large factors, and
Slim-ResNet18 with a memory of 2,000 images.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

from benchmarks.results import Breakdown, Result, Skipped, take_apart
from benchmarks.setup import Setup
from ocar.errors import DataError
from ocar_lab.experiment import RunConfig, Saved, Started, run_events

CASES = (("split-digits", "er", 1), ("split-mnist", "ocar", 1), ("split-cifar100", "er", 10))
"""Benchmark, method, and batches between two evaluations."""


def measure_saving(setup: Setup) -> Iterator[Result]:
    """Seconds of saving, and of everything else in a run."""
    for benchmark, method, every in CASES:
        name = f"saving, {benchmark} {method.upper()}"
        config = RunConfig(
            benchmark=benchmark,
            method=method,
            every=every,
            max_batches=setup.run_batches,
            probe=False,
            device="cuda" if setup.on_gpu else "cpu",
        )
        try:
            yield _measure(name, config)
        except DataError as error:
            yield Skipped(name=name, reason=str(error))


def _measure(name: str, config: RunConfig) -> Breakdown:
    saving, count, batches = 0.0, 0, 0
    with tempfile.TemporaryDirectory(prefix="ocar-saving-") as out:
        for event in run_events(config, out=out):
            if isinstance(event, Started):
                begun = time.perf_counter()  # reading the data set does not count
            elif isinstance(event, Saved):
                saving += event.seconds
                count += 1
                batches = event.index + 1
        rest = time.perf_counter() - begun - saving
    note = f"{batches} batches, saved {count} times, evaluated after every {config.interval}"
    return take_apart(
        name, {"saving": saving, "learning and evaluating": rest}, unit="s", note=note
    )
