"""Tables as texts: groups of runs, and numbers with their spread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ocar_lab.published import Published, published
from ocar_lab.runs.table import Group, Spread


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table as texts; all columns but the first hold numbers."""

    title: str  # a line above
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # lines below
    commands: tuple[str, ...] = ()  # lines for a shell, below the notes


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
"""Titles of the metrics that the paper compares."""

DETAILS = {
    "forgetting": "Forgetting 1st",
    "forgetting_mean": "Forgetting",
    "plasticity": "Plasticity",
    "stability_gap": "Gap",
    "recovery": "Recovery",
    "recovered": "Recovered",
    "first_task_seconds": "Task 1 s",
}
"""Titles of the other metrics; a metric without a title follows under its own name."""

TITLES = MAIN | DETAILS

EXPLAINED = {
    "acc": "accuracy on test data after the last batch",
    "aaa": "mean over time of the accuracy on all tasks so far",
    "wc_acc": "worst case: the lowest accuracy of each earlier task, and the last one's at the end",
    "probe": "test accuracy of a linear classifier on the final features",
    "online_acc": "accuracy on each batch before it is learned",
    "l_p": "summed loss on each batch before it is learned",
    "l_s": "summed loss on all data so far",
    "seconds": "seconds of training, without evaluation",
    "forgetting": "accuracy lost on the first task since it ended",
    "forgetting_mean": "the same, mean over all tasks but the last",
    "plasticity": "accuracy on the last task at the end",
    "stability_gap": "drop of the accuracy on earlier tasks when a task begins",
    "recovery": "evaluations until that accuracy is back; ≥ if some boundaries have no recovery",
    "recovered": "share of task boundaries with a recovery",
    "first_task_seconds": "seconds of training on the first task",
}
"""Each metric in a few words."""

HIGHER_IS_BETTER = {"acc", "aaa", "wc_acc", "probe", "online_acc", "plasticity", "recovered"}
"""Of the other metrics, the lowest is the best."""

ABSOLUTE = {"recovery", "l_p", "l_s", "seconds", "first_task_seconds"}
"""Metrics that are no fractions, and so are not shown in per cent."""


def main_metrics(together: Sequence[Group]) -> dict[str, str]:
    """The metrics of ``MAIN`` that some runs have, with their titles."""
    there = {name for group in together for name in group.metrics}
    return {name: title for name, title in MAIN.items() if name in there}


def other_metrics(together: Sequence[Group]) -> dict[str, str]:
    """All other metrics that some runs have, with their titles."""
    there = dict.fromkeys(name for group in together for name in group.metrics)
    titles = {name: DETAILS.get(name, name) for name in [*DETAILS, *there]}
    return {name: title for name, title in titles.items() if name in there and name not in MAIN}


def group_rows(
    benchmark: str, together: Sequence[Group], metrics: Iterable[str]
) -> list[tuple[Group | None, list[str]]]:
    """The rows of a benchmark's table: group, and texts of method, seeds, mean ± std by metric.

    The paper's numbers follow their method, with None for the group.
    """
    rows: list[tuple[Group | None, list[str]]] = []
    names = list(metrics)
    for group, label in zip(together, labels(together), strict=True):
        own = group.metrics
        texts = [metric_text(name, own) if name in own else "" for name in names]
        rows.append((group, [label, seeds_text(group), *texts]))
        printed = papers_numbers(group)
        numbers = [printed.get(name) for name in names]
        if any(numbers):
            texts = ["" if n is None else f"{n.mean:.1f} ± {n.std:.1f}" for n in numbers]
            rows.append((None, ["  paper", "", *texts]))
    return rows


def papers_numbers(group: Group) -> dict[str, Published]:
    """The paper's numbers of a method, by metric; none for another variant or part of a stream."""
    return published(group.benchmark, group.label) if group.is_papers else {}


def describe(group: Group) -> str:
    """The method, and the settings that differ from its preset."""
    changes = settings_text(group.changed)
    return f"{group.label} ({changes})" if changes else group.label


def labels(together: Sequence[Group]) -> list[str]:
    """The groups of a table as ``describe`` has them, with the hash where two are equal."""
    texts = [describe(group) for group in together]
    return [
        f"{text} {group.hash}" if texts.count(text) > 1 else text
        for group, text in zip(together, texts, strict=True)
    ]


def settings_text(settings: Mapping[str, object]) -> str:
    """Settings as text, numbers to four digits."""
    texts = {n: f"{v:.4g}" if isinstance(v, float) else str(v) for n, v in settings.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def seeds_text(group: Group) -> str:
    """The number of finished seeds; if there are others, of how many, and their states."""
    states = list(group.unfinished.values())
    if not states:
        return str(len(group.seeds))
    others = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(group.seeds)} of {len(group.seeds) + len(states)} ({', '.join(others)})"


def metric_text(name: str, metrics: Mapping[str, Spread]) -> str:
    """Mean ± std of one metric; for a recovery that is only a lower bound, that too."""
    recovered = metrics["recovered"].mean if "recovered" in metrics else 1.0
    if name == "recovery" and recovered == 0:
        return "never"
    bound = "≥ " if name == "recovery" and recovered < 1 else ""
    return bound + spread_text(name, metrics[name])


def comparable(together: Sequence[Group]) -> list[Group]:
    """The groups that compete: whole streams if there are any, without i.i.d. references."""
    competing = [group for group in together if not group.label.endswith("-iid")]
    return [group for group in competing if not group.is_part] or competing


def best_groups(name: str, together: Sequence[Group]) -> set[int]:
    """Places of the groups with the best mean of a metric, as shown; none for fewer than two.

    A lower bound is not the best: the mean may be larger.
    """
    compared = comparable(together)
    shown = {
        place: round(group.metrics[name].mean, 1 if name in ABSOLUTE else 3)
        for place, group in enumerate(together)
        if name in group.metrics
        and group in compared
        and metric_text(name, group.metrics) != "never"
    }
    if len(shown) < 2:
        return set()
    best = (max if name in HIGHER_IS_BETTER else min)(shown.values())
    places = {place for place, mean in shown.items() if mean == best}
    bounded = any(metric_text(name, together[place].metrics).startswith("≥") for place in places)
    return set() if bounded else places


def spread_text(name: str, value: Spread) -> str:
    """Mean ± std of one metric; in per cent if it is a fraction."""
    scale = 1 if name in ABSOLUTE else 100
    spread = "" if value.std is None else f" ± {scale * value.std:.1f}"
    return f"{scale * value.mean:.1f}{spread}"


def time_text(seconds: float) -> str:
    """A time in hours, minutes and seconds."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
