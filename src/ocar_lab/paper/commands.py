"""The ``ocar run`` line that makes what a table lacks."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from ocar.methods.registry import METHODS
from ocar_lab.experiment.config import base_settings
from ocar_lab.runs.command import flag_words


@dataclass(frozen=True, kw_only=True)
class Command:
    """How to complete a row."""

    method: str  # the row
    metrics: tuple[str, ...]  # metrics that are missing
    seeds: tuple[int, ...]  # seeds to run
    to_choose: tuple[str, ...]  # settings without a published value; capital letters in the line
    line: str  # the command


def make_command(
    benchmark: str,
    label: str,
    *,
    metrics: Sequence[str],
    seeds: Sequence[int],
    settings: Mapping[str, Any] | None = None,
    flags: Sequence[str] = (),
) -> Command:
    """The command that completes a row; ``settings`` are those of existing seeds."""
    method, given = label.removesuffix("-iid"), settings or {}
    missing = [name for name in needed_settings(benchmark, method) if name not in given]
    words = ["ocar", "run", benchmark, method, "--seeds", *map(str, seeds)]
    words += ["--iid"] if method != label else []
    for name, value in {**{name: name.upper() for name in missing}, **given}.items():
        words += flag_words(name, value)
    return Command(
        method=label,
        metrics=tuple(metrics),
        seeds=tuple(seeds),
        to_choose=tuple(missing),
        line=shlex.join([*words, *flags]),
    )


def needed_settings(benchmark: str, method: str) -> tuple[str, ...]:
    """Settings of a method that have neither a default nor a value from the benchmark."""
    chosen = METHODS[method]
    kinds = (chosen.settings, chosen.transform)
    fields = [field for kind in kinds if kind is not None for field in dataclasses.fields(kind)]
    needed = [f.name for f in fields if f.default is MISSING and f.default_factory is MISSING]
    chooses_lr = chosen.transform is not None and chosen.transform.chooses_lr
    if chosen.settings.lr is None and not chooses_lr:
        needed.insert(0, "lr")
    given = base_settings(benchmark, method)
    return tuple(dict.fromkeys(name for name in needed if name not in given))
