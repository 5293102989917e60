"""Which stored runs stand for a row of a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ocar.methods.presets import PRESETS
from ocar_lab.runs import Group

PROTOCOL = frozenset({"blurry", "max_tasks", "max_batches", "every"})
"""What a run may differ in from the protocol, beside the settings of its method."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The runs of a row."""

    group: Group | None
    """The configuration that was taken; None if there is none."""

    others: tuple[Group, ...]
    """Configurations of the method that were left out."""


def choose(
    together: Sequence[Group],
    benchmark: str,
    label: str,
    *,
    metrics: Collection[str],
    allowed: Collection[str] = (),
) -> Choice:
    """The configuration that stands for a method.

    It follows the protocol and has the selected settings, or any where none were selected for
    the benchmark. In how many columns the Fisher is sketched may differ: the paper's is exact, and
    all of them are estimates of it. Of several the one with the fewest differences is taken, then
    that with the most seeds, then that with more metrics.

    Args:
        together: Stored runs by configuration.
        benchmark: Name of the benchmark.
        label: Name of the method, ``er-iid`` for the i.i.d. row.
        metrics: The metrics that are asked for, by their names in ``Summary``.
        allowed: Names in ``PROTOCOL`` that may differ, since they leave the metrics as they are.
    """
    mine = [g for g in together if (g.benchmark, g.label) == (benchmark, label) and g.seeds]
    tuned = label.removesuffix("-iid") in PRESETS.get(benchmark, {})
    fitting = [g for g in mine if _fits(g, tuned=tuned, allowed=allowed)]
    if not fitting:
        return Choice(group=None, others=tuple(mine))

    def worth(g: Group) -> tuple[int, ...]:
        return -int(_is_estimate(g)), len(g.seeds), len(set(metrics) & g.metrics.keys())

    best = max(fitting, key=worth)
    return Choice(group=best, others=tuple(g for g in mine if g is not best))


def _fits(group: Group, *, tuned: bool, allowed: Collection[str]) -> bool:
    differing = group.changed.keys() - set(allowed)
    if _is_estimate(group):
        differing = differing - {"fisher"}
    return not (differing if tuned else differing & PROTOCOL)


def _is_estimate(group: Group) -> bool:
    """Whether the Fisher is the paper's, exact or sketched, though not as it is by default."""
    root = str(group.changed.get("fisher", ""))
    return root == "exact" or (root.startswith("sketched(") and "independent" not in root)
