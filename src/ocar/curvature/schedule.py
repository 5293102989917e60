"""Hyper-parameters that may change during a stream."""

from __future__ import annotations

from collections.abc import Callable

from ocar.errors import ConfigError

Schedule = float | Callable[[int], float]
"""A hyper-parameter: a number, or a function of the number of gradient steps taken."""


def at_step(schedule: Schedule, step: int) -> float:
    """The value of a schedule at a step."""
    return schedule(step) if callable(schedule) else schedule


def check_schedule(
    name: str, schedule: Schedule, allowed: str, valid: Callable[[float], bool]
) -> None:
    """Raise if a hyper-parameter is out of range; a schedule is judged by its value at step 0."""
    value = at_step(schedule, 0)
    if not valid(value):
        shown = f"{name}(0)={value!r}" if callable(schedule) else f"{name}={value!r}"
        raise ConfigError(f"Invalid {shown}. Must be {allowed}.")
