"""Timing: sides take turns, so that whatever slows the machine slows all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.setup import Setup

Clock = Callable[[], float]
Sides = Mapping[str, Callable[[], object]]
"""What to measure: functions by name."""

MOST_CALLS = 1000
"""Most calls of a side in one turn."""


def take_turns(
    sides: Sides,
    setup: Setup,
    *,
    turns: int | None = None,
    least: float | None = None,
    warm_up: int | None = None,
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of one call of each side, turn by turn.

    A turn repeats a call until it lasts ``least`` seconds. The device is synchronized before and
    after a turn and not between its calls, so that asynchronous work counts as it is used. Each
    side is called ``warm_up`` times before the first turn.
    """
    least = setup.least if least is None else least
    counts: dict[str, int] = {}
    for name, call in sides.items():
        for _ in range(warm_up_calls(setup.device) if warm_up is None else warm_up):
            call()
        counts[name] = 1
        if least > 0:
            counts[name] = calls_in_a_turn(_seconds(call, 1, setup.device, clock), least)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(setup.turns if turns is None else turns):
        for name, call in sides.items():
            times[name].append(_seconds(call, counts[name], setup.device, clock))
    return times


def calls_in_a_turn(once: float, least: float) -> int:
    """Calls that make a turn of ``least`` seconds, if one call takes ``once`` seconds."""
    return min(MOST_CALLS, max(1, math.ceil(least / once))) if once > 0 else MOST_CALLS


def warm_up_calls(device: torch.device) -> int:
    """Calls before a measurement.

    On a GPU a learner runs its first batch eagerly, records the second as a CUDA graph and launches
    it from then on. The fourth call finds everything in place.
    """
    return 4 if device.type == "cuda" else 1


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(call: Callable[[], object], count: int, device: torch.device, clock: Clock) -> float:
    """Mean seconds of ``count`` calls in a row."""
    synchronize(device)
    start = clock()
    for _ in range(count):
        call()
    synchronize(device)
    return (clock() - start) / count
