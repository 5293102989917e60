"""The measuring itself: sides take turns, so that whatever slows the machine slows them all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Clock = Callable[[], float]

MOST_CALLS = 1000
"""Most calls of a side in one turn."""


@dataclass(frozen=True)
class Side:
    """Something to measure."""

    name: str
    """What it is called; the times are kept under it."""

    call: Callable[[], object]
    """Does it once."""


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def warm_up_calls(device: torch.device) -> int:
    """Calls before the measuring begins.

    On a GPU a learner runs its first batch as it is written, records the second as a graph and
    replays it from then on; one more call finds everything in place.
    """
    return 4 if device.type == "cuda" else 1


def take_turns(
    sides: Sequence[Side],
    *,
    turns: int,
    least: float,
    device: torch.device,
    warm_up: int | None = None,
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of a call of each side, turn by turn.

    A side is called as often in a turn as it takes for the turn to be long enough. The device is
    waited for before a turn and at its end, and not between its calls: work that goes on beside
    the host is measured as it is used, and what the host does counts where it is the slower one.

    Args:
        sides: What to measure; names must differ.
        turns: Turns of each.
        least: Seconds that a turn should last.
        device: Where the work is done.
        warm_up: Calls of each side before the turns; by default those that a learner needs.
        clock: Tells the time in seconds.

    Returns:
        For each name one number a turn.
    """
    counts: dict[str, int] = {}
    for side in sides:
        for _ in range(warm_up_calls(device) if warm_up is None else warm_up):
            side.call()
        counts[side.name] = 1
        if least > 0:
            once = seconds_of(side.call, 1, device=device, clock=clock)
            counts[side.name] = calls_in_a_turn(once, least)
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(turns):
        for side in sides:
            count = counts[side.name]
            times[side.name].append(seconds_of(side.call, count, device=device, clock=clock))
    return times


def seconds_of(
    call: Callable[[], object], count: int, *, device: torch.device, clock: Clock
) -> float:
    """Seconds of one call, from so many in a row."""
    wait_for(device)
    start = clock()
    for _ in range(count):
        call()
    wait_for(device)
    return (clock() - start) / count


def calls_in_a_turn(once: float, least: float) -> int:
    """How often to call what takes ``once`` seconds for a turn of ``least`` seconds."""
    return min(MOST_CALLS, max(1, math.ceil(least / once))) if once > 0 else MOST_CALLS
