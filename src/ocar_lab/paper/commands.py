"""The ``ocar run`` line that makes what a table lacks."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from types import MappingProxyType
from typing import Any

from ocar.methods.registry import METHODS
from ocar_lab.experiment.config import base_settings
from ocar_lab.runs.command import flag_words

NONE: Mapping[str, Any] = MappingProxyType({})
"""No settings."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """How to make what is missing in a row."""

    method: str
    """The row."""

    metrics: tuple[str, ...]
    """Metrics that are missing."""

    seeds: tuple[int, ...]
    """Seeds to run."""

    to_choose: tuple[str, ...]
    """Settings without a published value, which stand in the line as capital letters."""

    line: str
    """The command."""


def make_command(
    benchmark: str,
    label: str,
    *,
    metrics: Sequence[str],
    seeds: Sequence[int],
    settings: Mapping[str, Any] = NONE,
    flags: Sequence[str] = (),
) -> Command:
    """How to make what is missing in a row.

    Args:
        benchmark: Name of the benchmark.
        label: Name of the method, ``er-iid`` for the i.i.d. row.
        metrics: Metrics that are missing.
        seeds: Seeds to run.
        settings: Settings of the seeds that are there, where none are published.
        flags: Words to add.
    """
    needed = needed_settings(benchmark, label.removesuffix("-iid"))
    return Command(
        method=label,
        metrics=tuple(metrics),
        seeds=tuple(seeds),
        to_choose=tuple(name for name in needed if name not in settings),
        line=run_line(benchmark, label, seeds=seeds, settings=settings, flags=flags),
    )


def run_line(
    benchmark: str,
    label: str,
    *,
    seeds: Sequence[int],
    settings: Mapping[str, Any] = NONE,
    flags: Sequence[str] = (),
) -> str:
    """The ``ocar run`` line for a row of a table.

    Args:
        benchmark: Name of the benchmark.
        label: Name of the method, ``er-iid`` for the i.i.d. row.
        seeds: Seeds to run.
        settings: Settings to give; what is needed beside them stands in capital letters.
        flags: Words to add.
    """
    method = label.removesuffix("-iid")
    words = ["ocar", "run", benchmark, method, "--seeds", *map(str, seeds)]
    words += ["--iid"] if method != label else []
    needed = {name: name.upper() for name in needed_settings(benchmark, method)}
    for name, value in {**needed, **settings}.items():
        words += flag_words(name, value)
    return shlex.join([*words, *flags])


def needed_settings(benchmark: str, method: str) -> tuple[str, ...]:
    """Settings of a method that neither its defaults nor the benchmark give.

    Args:
        benchmark: Name of the benchmark.
        method: Name of the method.
    """
    kinds = (METHODS[method].settings, METHODS[method].transform)
    given = base_settings(benchmark, method)
    needed = [
        field.name
        for kind in kinds
        if kind is not None
        for field in dataclasses.fields(kind)
        if field.default is MISSING and field.default_factory is MISSING and field.name not in given
    ]
    return tuple(dict.fromkeys(needed))
