"""The claims of the paper's text, and whether they hold in our numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ocar.streams.benchmarks import get_benchmark
from ocar_lab.paper.choice import choose
from ocar_lab.paper.commands import Command
from ocar_lab.paper.tables import TABLE1, clear_tables, convex_table, table1
from ocar_lab.paper.times import BENCHMARK, METRIC, REFERENCE, TimesTable, times_table
from ocar_lab.paper.verdict import Claim, Verdict, check
from ocar_lab.runs import Measured, groups

GROWTH = 1.5
"""A later task may take so many times the seconds of the first: times of one run vary."""

COST = Claim(
    metric="seconds",
    leaders=("later tasks",),
    others=(f"{GROWTH} x task 1",),
    others_named=f"{GROWTH} times task 1",
    lower=True,
)
"""The paper's text: the cost of a step does not grow with the number of tasks."""

SLOWER = 3

RATIO = Claim(
    metric=METRIC,
    leaders=("ocar",),
    others=(f"{SLOWER} x er",),
    others_named=f"{SLOWER} times er",
    lower=True,
)
"""The paper's text: OCAR is about three times slower than ER. It holds if OCAR is not slower."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The claims of the paper, and how to make what they lack."""

    verdicts: Mapping[str, Sequence[Verdict]]  # by what they are about
    made: tuple[str, ...]  # benchmarks of which one command makes what is missing
    commands: tuple[Command, ...]  # how to make the rest


def check_all(runs: Sequence[Measured]) -> Checked:
    """Check every claim."""
    halves = {benchmark: table1(runs, benchmark) for benchmark in TABLE1}
    others = {"clear": clear_tables(runs)[0], "convex": convex_table(runs)}
    times = times_table(runs)
    return Checked(
        verdicts={
            **{name: table.verdicts for name, table in (halves | others).items()},
            f"{BENCHMARK}, time": [times.verdict, beside_er(times)],
            f"{BENCHMARK}, ocar": [constant_cost(runs)],
        },
        made=tuple(benchmark for benchmark, table in halves.items() if table.commands),
        commands=(
            *(command for table in others.values() for command in table.commands),
            *(c for c in times.commands if c.method in times.verdict.missing),
        ),
    )


def beside_er(times: TimesTable) -> Verdict:
    """Whether OCAR takes at most three times as long as ER."""
    values = {row.method: row.ours.mean for row in times.rows if row.ours is not None}
    if REFERENCE in values:
        values[RATIO.others[0]] = SLOWER * values[REFERENCE]
    return check(RATIO, values)


def constant_cost(runs: Sequence[Measured]) -> Verdict:
    """Whether a later task takes OCAR as long as the first, in the mean over seeds."""
    wanted = ("seconds", METRIC)
    group, _ = choose(groups(runs), BENCHMARK, "ocar", metrics=wanted)
    if group is None or not group.metrics.keys() >= set(wanted):
        return check(COST, {})
    whole, first = (group.metrics[name].mean for name in wanted)
    later = (whole - first) / (get_benchmark(BENCHMARK).tasks - 1)
    return check(COST, {COST.leaders[0]: later, COST.others[0]: GROWTH * first})
