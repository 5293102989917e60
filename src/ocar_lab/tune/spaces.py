"""The search space of a method on a benchmark, and how Optuna draws from it."""

from __future__ import annotations

from typing import Any

from ocar.methods import spaces
from ocar.methods.spaces import Choice, Range
from ocar.streams.benchmarks import get_benchmark


def search_space(
    benchmark: str, method: str, transform: str | None = None
) -> dict[str, Range | Choice]:
    """The search space of a method on a benchmark, by its kind."""
    regression = get_benchmark(benchmark).kind == "regression"
    return spaces.search_space(method, transform=transform, regression=regression)


def suggest(trial: Any, name: str, part: Range | Choice) -> Any:
    """Draw the value of a setting."""
    if isinstance(part, Choice):
        return trial.suggest_categorical(name, part.values)
    if part.whole:
        return trial.suggest_int(name, int(part.low), int(part.high), log=part.log)
    return trial.suggest_float(name, part.low, part.high, log=part.log)
