"""Which stored runs stand for a row of a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ocar.methods.presets import PRESETS
from ocar.streams.split import Splits
from ocar_lab.runs import Group
from ocar_lab.runs.table import PROTOCOL, estimates_fisher
from ocar_lab.runs.versions import earlier_settings


def stale_settings(changed: Mapping[str, Any]) -> set[str]:
    """Settings by which runs of a published method are not of the present preset."""
    return changed.keys() & {"fisher", *earlier_settings(changed)}


def choose(
    together: Sequence[Group],
    benchmark: str,
    label: str,
    *,
    metrics: Collection[str],
    allowed: Collection[str] = (),
    splits: Splits | None = None,
) -> tuple[Group | None, list[Group]]:
    """Choose the configuration that stands for a method.

    It follows the protocol and has the selected settings; any settings, where none were selected
    for the benchmark. The number of columns in the sketch of the Fisher may differ: all of them
    estimate the paper's exact Fisher. So may settings of earlier presets. Among several, the
    published splits come first, then the present preset, then the default Fisher, then the most
    seeds, then the most metrics. Names in ``PROTOCOL`` are ``allowed`` to differ where the metrics
    do not depend on them. With ``splits`` only runs on these count.

    Returns:
        The configuration, None if there is none, and the method's other configurations.
    """
    mine = [g for g in together if (g.benchmark, g.label) == (benchmark, label) and g.seeds]
    tuned = label.removesuffix("-iid") in PRESETS.get(benchmark, {})

    def fits(g: Group) -> bool:
        if splits is not None and splits != ("own" if "splits" in g.changed else "published"):
            return False
        sketched = ("fisher",) if estimates_fisher(g.changed) else ()
        differing = g.changed.keys() - {"splits", *allowed, *sketched, *earlier_settings(g.changed)}
        return not (differing if tuned else differing & PROTOCOL)

    def rank(g: Group) -> tuple[int, ...]:
        earlier = earlier_settings(g.changed)
        usual = "splits" not in g.changed, not earlier, not estimates_fisher(g.changed)
        return *usual, len(g.seeds), len(set(metrics) & g.metrics.keys())

    best = max(filter(fits, mine), key=rank, default=None)
    return best, [g for g in mine if g is not best]
