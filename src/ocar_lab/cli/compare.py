"""``ocar compare``: two sets of runs, paired by seed."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocar.errors import ConfigError, RunError
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.tables import print_errors, print_json, print_table
from ocar_lab.runs import Comparison, Group, Measured, Paired, compare, groups, read_all
from ocar_lab.runs.find import HOW_TO_RUN
from ocar_lab.runs.paired import listed
from ocar_lab.runs.texts import ABSOLUTE, TITLES, describe, labels, metric_text, spread_text

HASH_DIGITS = 4
"""Fewest digits that select a hash."""

MOST_NAMED = 8
"""Most configurations that an error names."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare two sets of runs, seed by seed: the mean of second - first, with an interval.

    Each set is PATH or PATH:WORD, with further words after further colons. The path is a folder
    that contains runs or kept results, or one file of ocar keep. If it has several configurations,
    words select one: a benchmark, a method, or the first digits of a hash, as in results:er,
    results:split-cifar100:ocar or runs:1801a6.

    Means are over the seeds that both sets have. The 95 % interval is Student's t over the paired
    differences; * marks an interval that excludes 0. A recovery marked ≥ is a lower bound and has
    no difference.
    """

    first: str
    """The first set, such as runs:er."""

    second: str
    """The second set, such as runs:ocar; the first is subtracted from it."""

    json: bool = False
    """Print JSON; metrics as fractions."""


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Compare two sets of runs."""
    options = parse(Options, arguments, command=f"ocar {command}")
    first, errors = select(options.first)
    second, more = select(options.second)
    print_errors(dict.fromkeys(errors + more))
    comparison = compare(first, second)
    sides = groups(first)[0], groups(second)[0]
    if options.json:
        print_json(document(comparison, sides))
    else:
        _print(comparison, sides)
    return 1 if errors + more else 0


def select(text: str) -> tuple[list[Measured], list[str]]:
    """The runs of the one configuration that ``PATH[:WORD...]`` selects, and errors of reading."""
    path, words = text, list[str]()
    while not Path(path).exists() and ":" in path:  # a path may have colons itself
        path, _, word = path.rpartition(":")
        words.append(word)
    if not Path(path).exists():
        raise ConfigError(
            f"Invalid set {text!r}: there is no folder {path}. Must be PATH or PATH:WORD, as in "
            f"runs:er. {HOW_TO_RUN}"
        )
    runs, errors = read_all(Path(path))
    if not runs:
        raise RunError("\n      ".join(errors) or f"There are no runs in {path}. {HOW_TO_RUN}")
    chosen = [group for group in groups(runs) if all(_matches(word, group) for word in words)]
    if len(chosen) != 1:
        there = [f"{path}:{_choice(group, runs)}" for group in chosen or groups(runs)]
        more = f", or {len(there) - MOST_NAMED} more" if len(there) > MOST_NAMED else ""
        matches = f"matches {len(chosen)} configurations" if chosen else "matches nothing"
        raise ConfigError(f"{text} {matches}. Name one: {', '.join(there[:MOST_NAMED])}{more}.")
    return [run for run in runs if run.key == chosen[0].key], errors


def _choice(group: Group, runs: Sequence[Measured]) -> str:
    """The word that selects a configuration, and what it is and where."""
    first = next(run.path for run in runs if run.key == group.key)
    folder = first if first.is_file() else first.parent  # that of all its seeds
    alike = sum(_matches(group.label, other) for other in groups(runs))
    word = group.label if alike == 1 else group.hash
    return f"{word} ({group.benchmark} {describe(group)}, {folder})"


def _matches(word: str, group: Group) -> bool:
    is_hash = len(word) >= HASH_DIGITS and group.hash.startswith(word)
    return is_hash or word in (group.benchmark, group.label)


def document(comparison: Comparison, sides: Sequence[Group]) -> dict[str, Any]:
    """What ``--json`` prints: metrics as fractions."""
    names = ("benchmark", "label", "hash", "changed", "devices")
    first, second = ({name: getattr(side, name) for name in names} for side in sides)
    metrics = {n: dataclasses.asdict(p) | {"pairs": p.pairs} for n, p in comparison.metrics.items()}
    own = dataclasses.asdict(comparison) | {"confidence": 0.95, "metrics": metrics}
    return {"first": first, "second": second, **own}


def _print(comparison: Comparison, sides: Sequence[Group]) -> None:
    first, second = labels(sides)
    rows = metric_rows(comparison.metrics)
    print_table(
        ["metric", first, second, "difference", "95 % interval", "pairs"],
        rows,
        title=f"{sides[0].benchmark}: mean ± std over seeds {listed(comparison.seeds)}, in %",
        numbers=True,
    )
    notes = []
    if any(row[4].endswith("*") for row in rows):
        notes.append("* the interval excludes 0")
    if len(comparison.seeds) == 1:
        notes.append("One pair has no spread and so no interval.")
    unpaired = {"first": comparison.only_first, "second": comparison.only_second}
    notes += [
        f"Left out: seeds {listed(seeds)}, which only the {which} set has."
        for which, seeds in unpaired.items()
        if seeds
    ]
    sys.stdout.write("".join(f"{note}\n" for note in ["", *notes] if notes))


def metric_rows(metrics: Mapping[str, Paired]) -> list[list[str]]:
    """One row of texts for each metric, in the order of ``TITLES``; fractions in per cent.

    A recovery that is only a lower bound has no difference.
    """
    rows = []
    for name in (name for name in dict.fromkeys([*TITLES, *metrics]) if name in metrics):
        pair, scale = metrics[name], 1 if name in ABSOLUTE else 100
        sides = (
            {n: p.first for n, p in metrics.items()},
            {n: p.second for n, p in metrics.items()},
        )
        means = [metric_text(name, side) for side in sides]
        difference = interval = ""
        if means == [spread_text(name, side[name]) for side in sides]:  # no lower bound
            difference = f"{scale * pair.difference:+z.1f}"
            if pair.interval is not None:
                low, high = (scale * end for end in pair.interval)
                interval = f"{low:+z.1f} to {high:+z.1f}{' *' if pair.clear else ''}"
        rows.append([TITLES.get(name, name), *means, difference, interval, str(pair.pairs)])
    return rows
