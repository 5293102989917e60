"""The claims of the paper's text, and whether they hold in our numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ocar.streams.benchmarks import get_benchmark
from ocar_lab.paper.choice import choose
from ocar_lab.paper.tables import TABLE1, Claim, Verdict, check, clear_tables, table1
from ocar_lab.paper.times import BENCHMARK, METRIC, times_table
from ocar_lab.runs import Measured, groups

GROWTH = 1.5
"""A later task may take so many times the seconds of the first: times of one run vary."""

COST = Claim(
    metric="seconds",
    leaders=("a later task",),
    others=(f"{GROWTH} x the first",),
    others_named=f"{GROWTH} times the first one",
    lower=True,
)
"""The paper's text: the cost of a step does not grow with the number of tasks."""


def verdicts(runs: Sequence[Measured]) -> dict[str, list[Verdict]]:
    """The verdict on each claim, by what it is about."""
    halves = {benchmark: [*table1(runs, benchmark).verdicts] for benchmark in TABLE1}
    clear = [*clear_tables(runs)[0].verdicts]
    speed = [times_table(runs).verdict, constant_cost(runs)]
    return {**halves, "clear": clear, f"{BENCHMARK}, time": speed}


def constant_cost(runs: Sequence[Measured]) -> Verdict:
    """Whether a later task takes OCAR as long as the first, in the mean over seeds."""
    wanted = ("seconds", METRIC)
    group, _ = choose(groups(runs), BENCHMARK, "ocar", metrics=wanted)
    if group is None or not group.metrics.keys() >= set(wanted):
        return check(COST, {})
    whole, first = (group.metrics[name].mean for name in wanted)
    later = (whole - first) / (get_benchmark(BENCHMARK).tasks - 1)
    return check(COST, {COST.leaders[0]: later, COST.others[0]: GROWTH * first})
