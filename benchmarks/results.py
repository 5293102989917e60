"""What a measurement finds: a ratio, a breakdown into parts, or why it was skipped."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import torch

from benchmarks.setup import Setup
from ocar_lab.runs import describe_process

SCHEMA = 1
"""Version of the JSON; to be raised when a reader of this version would misread a new one."""

BATCH = "s a stream batch"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a ratio should be."""

    relation: Literal["at most", "at least"]
    value: float

    def met(self, ratio: float) -> bool:
        """Whether a ratio reaches the target."""
        return ratio <= self.value if self.relation == "at most" else ratio >= self.value

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median time of one side over median time of another, measured in turns."""

    name: str
    above: str
    below: str
    ratio: float
    smallest: float  # ratio of one turn
    largest: float
    time_above: float
    time_below: float
    turns: int
    unit: str = BATCH
    note: str = ""
    target: Target | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a breakdown; ``share`` is between 0 and 1."""

    name: str
    amount: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """A total and its parts, largest first."""

    name: str
    parts: tuple[Part, ...]
    total: float
    unit: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A measurement that is not possible here, and why."""

    name: str
    reason: str


Result = Ratio | Breakdown | Skipped


def compare(
    name: str,
    times: Mapping[str, Sequence[float]],
    above: str,
    below: str,
    *,
    unit: str = BATCH,
    note: str = "",
    target: Target | None = None,
) -> Ratio:
    """The ratio of two sides, with its spread.

    A turn that other load disturbed changes the spread, not the medians.
    """
    ratios = [a / b for a, b in zip(times[above], times[below], strict=True)]
    time_above, time_below = median(times[above]), median(times[below])
    return Ratio(
        name=name,
        above=above,
        below=below,
        ratio=time_above / time_below,
        smallest=min(ratios),
        largest=max(ratios),
        time_above=time_above,
        time_below=time_below,
        turns=len(ratios),
        unit=unit,
        note=note,
        target=target,
    )


def take_apart(name: str, amounts: Mapping[str, float], *, unit: str, note: str = "") -> Breakdown:
    """A breakdown from the amount of each part."""
    total = sum(amounts.values())
    parts = tuple(
        Part(name=part, amount=amount, share=amount / total if total else 0.0)
        for part, amount in sorted(amounts.items(), key=lambda item: -item[1])
    )
    return Breakdown(name=name, parts=parts, total=total, unit=unit, note=note)


def document(results: Sequence[Result], *, setup: Setup, command: str) -> dict[str, Any]:
    """Results with their provenance, in plain values, as ``--json`` prints them."""
    process = describe_process(setup.device)
    chosen = dataclasses.asdict(setup)
    del chosen["device"]
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    compared = {n: installed[n] for n in ("nngeometry", "avalanche-lib") if n in installed}
    return {
        "schema": SCHEMA,
        "command": command,
        "time": process["time"],
        "device": process["device"],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": process["versions"] | compared,
        "git": process["git"],
        "setup": chosen,
        "results": [_plain(result) for result in results],
    }


def _plain(result: Result) -> dict[str, Any]:
    kind = {Ratio: "ratio", Breakdown: "breakdown"}.get(type(result), "skipped")
    values = {"kind": kind, **dataclasses.asdict(result)}
    if isinstance(result, Ratio) and result.target is not None:
        values["target"]["met"] = result.target.met(result.ratio)
    return {name: _rounded(value) for name, value in values.items()}


def _rounded(value: Any) -> Any:
    """Floats with four significant digits, at any depth."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return value
