"""``ocar compare``: two sets of runs side by side, with paired differences by seed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocar.errors import ConfigError, RunError
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.stored import read_all
from ocar_lab.cli.tables import DETAILS, MAIN, NOT_PARTS, describe, print_table, spread_text
from ocar_lab.runs import Comparison, Group, Measured, Paired, compare, groups
from ocar_lab.runs.paired import listed

HASH_DIGITS = 4
"""First digits of a hash that are enough to mean it."""

MOST_NAMED = 8
"""Configurations that an error names."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare two sets of runs, seed by seed: the mean of second - first, with its 95 % interval.

    Each set is PATH or PATH:WORD, with more words after more colons. The path is a folder with
    runs or kept results in it, or one file of ocar keep. If more than one configuration is there,
    words choose: a benchmark, a method, or the first digits of a hash, as in results:er,
    results:split-cifar100:ocar or runs:1801a6.

    The means are over the seeds that both sets have. The interval is Student's t over the paired
    differences; * marks one that leaves out 0.
    """

    first: str
    """The one set."""

    second: str
    """The other set, which the first is taken away from."""

    json: bool = False
    """Print JSON; metrics as parts of 1."""


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Compare two sets of runs.

    Returns:
        0, or 1 if a run cannot be read.
    """
    options = parse(Options, arguments, command=f"ocar {command}")
    first, errors = select(options.first)
    second, more = select(options.second)
    for error in dict.fromkeys(errors + more):
        sys.stderr.write(f"ocar: {error}\n")
    comparison = compare(first, second)
    sides = groups(first)[0], groups(second)[0]
    if options.json:
        json.dump(document(comparison, sides), sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        _print(comparison, sides)
    return 1 if errors + more else 0


def select(text: str) -> tuple[list[Measured], list[str]]:
    """The runs of one configuration that an argument names.

    Args:
        text: ``PATH`` or ``PATH:WORD[:WORD...]``.

    Returns:
        The runs, and what is wrong with those that cannot be read.

    Raises:
        ConfigError: The words choose no configuration, or more than one.
        RunError: There is no such path, or nothing in it.
    """
    path, words = _split(text)
    runs, errors = read_all(path)
    if not runs:
        raise RunError("\n      ".join(errors) or f"There are no runs in {path}.")
    chosen = [group for group in groups(runs) if all(_is_meant(word, group) for word in words)]
    if len(chosen) != 1:
        there = [_named(group) for group in chosen or groups(runs)]
        more = f"; {len(there) - MOST_NAMED} more" if len(there) > MOST_NAMED else ""
        raise ConfigError(
            f"{text} means {'more than one configuration' if chosen else 'none of what is there'}: "
            f"{'; '.join(there[:MOST_NAMED])}{more}.\n"
            "      Choose by PATH:METHOD or PATH:HASH."
        )
    return [run for run in runs if _key(run) == _key(chosen[0])], errors


def _split(text: str) -> tuple[Path, list[str]]:
    """Path and words; a path may have colons itself."""
    words: list[str] = []
    path = text
    while not Path(path).exists() and ":" in path:
        path, _, word = path.rpartition(":")
        words.insert(0, word)
    return Path(path), words


def _is_meant(word: str, group: Group) -> bool:
    return word in (group.benchmark, group.label) or (
        len(word) >= HASH_DIGITS and group.hash.startswith(word)
    )


def _key(run: Measured | Group) -> tuple[str, str, str]:
    return run.benchmark, run.label, run.hash


def _named(group: Group) -> str:
    return f"{group.benchmark} {describe(group)} {group.hash}"


def document(comparison: Comparison, sides: Sequence[Group]) -> dict[str, Any]:
    """What ``--json`` prints: plain values, metrics as parts of 1.

    Args:
        comparison: The numbers.
        sides: What the first and the second set are.
    """
    names = ("benchmark", "label", "hash", "changed", "devices")
    first, second = ({name: getattr(side, name) for name in names} for side in sides)
    return {
        "first": first,
        "second": second,
        "seeds": comparison.seeds,
        "only_first": comparison.only_first,
        "only_second": comparison.only_second,
        "confidence": 0.95,
        "metrics": {name: _plain(pair) for name, pair in comparison.metrics.items()},
    }


def _plain(pair: Paired) -> dict[str, Any]:
    return {
        "first": dataclasses.asdict(pair.first),
        "second": dataclasses.asdict(pair.second),
        "pairs": pair.pairs,
        "difference": pair.difference,
        "interval": None if pair.interval is None else [pair.interval.low, pair.interval.high],
    }


def _print(comparison: Comparison, sides: Sequence[Group]) -> None:
    first, second = map(describe, sides)
    if first == second:
        first, second = (f"{describe(side)} {side.hash}" for side in sides)
    print_table(
        ["metric", first, second, "second - first", "95 % interval", "pairs"],
        metric_rows(comparison.metrics),
        title=f"{sides[0].benchmark}: mean ± std over seeds {listed(comparison.seeds)}, in %",
        numbers=True,
    )
    notes = []
    if any(pair.clear for pair in comparison.metrics.values()):
        notes.append("* the interval leaves out 0")
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
    """One row of texts a metric, those that the paper compares first; parts of 1 in per cent."""
    titles = MAIN | DETAILS
    names = [name for name in [*titles, *metrics] if name in metrics]
    return [_row(name, titles.get(name, name), metrics[name]) for name in dict.fromkeys(names)]


def _row(name: str, title: str, pair: Paired) -> list[str]:
    scale = 1 if name in NOT_PARTS else 100
    interval = ""
    if pair.interval is not None:
        low, high = (scale * end for end in pair.interval)
        interval = f"{low:+z.1f} to {high:+z.1f}{' *' if pair.clear else ''}"
    first, second = spread_text(name, pair.first), spread_text(name, pair.second)
    return [title, first, second, f"{scale * pair.difference:+z.1f}", interval, str(pair.pairs)]
