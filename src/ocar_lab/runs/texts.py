"""Groups of runs as the texts of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ocar_lab.published import published
from ocar_lab.runs.table import Group, Spread

MAIN = {
    "acc": "Acc",
    "aaa": "AAA",
    "wc_acc": "WC-Acc",
    "probe": "Probed",
    "online_acc": "Online",
    "l_p": "L_p",
    "l_s": "L_s",
    "seconds": "Train s",
}
"""The metrics that the paper compares, and their titles."""

DETAILS = {
    "forgetting": "Forgetting 1st",
    "forgetting_mean": "Forgetting",
    "plasticity": "Plasticity",
    "stability_gap": "Gap",
    "recovery": "Recovery",
    "first_task_seconds": "Task 1 s",
}
"""The other metrics; any that are not named here follow under their own names."""

NOT_PARTS = {"recovery", "l_p", "l_s", "seconds", "first_task_seconds"}
"""Metrics that are not parts of 1, and so not shown in per cent."""


def main_metrics(together: Sequence[Group]) -> dict[str, str]:
    """Those metrics of the paper's that some runs have, and their titles."""
    there = {name for group in together for name in group.metrics}
    return {name: title for name, title in MAIN.items() if name in there}


def other_metrics(together: Sequence[Group]) -> dict[str, str]:
    """The other metrics that some runs have, and their titles."""
    there = dict.fromkeys(name for group in together for name in group.metrics)
    titles = {name: DETAILS.get(name, name) for name in [*DETAILS, *there]}
    return {name: title for name, title in titles.items() if name in there and name not in MAIN}


def group_rows(
    benchmark: str, together: Sequence[Group], metrics: Iterable[str]
) -> list[tuple[Group | None, list[str]]]:
    """The rows of a benchmark's table: the method, its seeds, and mean ± std of each metric.

    Args:
        benchmark: Its name.
        together: What the rows are of.
        metrics: The columns.

    Returns:
        For each row what it is of, None for the paper's below its method, and its texts. Runs of a
        part of a stream have none below them.
    """
    rows: list[tuple[Group | None, list[str]]] = []
    names = list(metrics)
    for group in together:
        rows.append((group, [describe(group), seeds_text(group), *cells(group.metrics, names)]))
        printed = {} if group.is_part else published(benchmark, group.label)
        numbers = [printed.get(name) for name in names]
        if any(numbers):
            texts = ["" if n is None else f"{n.mean:.1f} ± {n.std:.1f}" for n in numbers]
            rows.append((None, ["  paper", "", *texts]))
    return rows


def describe(group: Group) -> str:
    """The method, and what was changed of its preset."""
    changes = ", ".join(f"{name}={_short(value)}" for name, value in group.changed.items())
    return f"{group.label} ({changes})" if changes else group.label


def _short(value: object) -> str:
    """A setting for a table; the digits that a search has drawn would fill it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def seeds_text(group: Group) -> str:
    """How many seeds are finished, and what is with the others."""
    states = list(group.unfinished.values())
    others = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return ", ".join([str(len(group.seeds)), *others])


def cells(metrics: Mapping[str, Spread], names: Sequence[str]) -> list[str]:
    """Mean ± std of each metric, as text."""
    return ["" if name not in metrics else spread_text(name, metrics[name]) for name in names]


def spread_text(name: str, value: Spread) -> str:
    """Mean ± std of one metric, as text; in per cent if it is a part of 1."""
    scale = 1 if name in NOT_PARTS else 100
    spread = "" if value.std is None else f" ± {scale * value.std:.1f}"
    return f"{scale * value.mean:.1f}{spread}"
