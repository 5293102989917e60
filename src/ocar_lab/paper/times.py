"""The paper's table of training times: seconds for the first task of Split-CIFAR100.

The paper's seconds are of another machine, so each method's time is compared as a ratio to ER. Ours
are all of one device, the one with the most methods, and of runs that had it to themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ocar_lab.paper.choice import choose
from ocar_lab.paper.commands import Command, make_command
from ocar_lab.paper.verdict import Claim, Verdict, changed_settings, check
from ocar_lab.published import FIRST_TASK_SECONDS
from ocar_lab.runs import Group, Measured, Spread, groups

BENCHMARK = "split-cifar100"
METRIC = "first_task_seconds"
REFERENCE = "er"

ALLOWED = ("max_tasks", "every")
"""Settings that may differ: the training time of the first task does not depend on them."""

FLAGS = ("--max-tasks", "1", "--every", "task", "--no-probe", "--workers", "1")
"""One task, little evaluation, and no other run on the device."""

CLAIM = Claim(
    metric=METRIC,
    leaders=("ocar",),
    others=("mir", "scr", "lpr"),
    others_named="mir, scr, lpr",
    lower=True,
)
"""From the paper's text, although its table has MIR at 31 s and OCAR at 38 s."""


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """A method in the table."""

    method: str
    paper: float  # printed seconds
    paper_ratio: float  # relative to ER
    ours: Spread | None  # our seconds; None if there are none
    ratio: float | None  # our mean over that of ER; None without both


@dataclass(frozen=True, kw_only=True)
class TimesTable:
    """The table of training times with ours."""

    device: str | None  # of ours; None if there are none
    other_devices: tuple[str, ...]  # devices that were left out
    rows: tuple[TimeRow, ...]  # in the paper's order
    verdict: Verdict  # on the claim that OCAR takes less time than MIR, SCR and LPR
    commands: tuple[Command, ...]  # how to make what is missing or has other settings


def times_table(runs: Sequence[Measured]) -> TimesTable:
    """The table of training times."""
    there = [r for r in runs if r.benchmark == BENCHMARK and r.summary is not None and r.alone]
    devices = dict.fromkeys(run.device for run in there)
    found = {d: _chosen(groups(run for run in there if run.device == d)) for d in devices}
    found = {device: own for device, own in found.items() if own}
    device = max(found, key=lambda name: len(found[name]), default=None)
    chosen = {} if device is None else found[device]
    ours = {method: group.metrics[METRIC] for method, group in chosen.items()}
    changed = changed_settings({m: g.changed for m, g in chosen.items()}, allowed=ALLOWED)
    er, printed_er = ours.get(REFERENCE), FIRST_TASK_SECONDS[REFERENCE]
    rows = tuple(
        TimeRow(
            method=method,
            paper=seconds,
            paper_ratio=seconds / printed_er,
            ours=ours.get(method),
            ratio=ours[method].mean / er.mean if method in ours and er else None,
        )
        for method, seconds in FIRST_TASK_SECONDS.items()
    )
    return TimesTable(
        device=device,
        other_devices=tuple(name for name in found if name != device),
        rows=rows,
        verdict=replace(check(CLAIM, {m: own.mean for m, own in ours.items()}), changed=changed),
        commands=tuple(
            make_command(BENCHMARK, row.method, metrics=[METRIC], seeds=[0], flags=FLAGS)
            for row in rows
            if row.ours is None or row.method in changed
        ),
    )


def _chosen(together: Sequence[Group]) -> dict[str, Group]:
    """The configuration of each method that has the seconds."""
    found = {}
    for method in FIRST_TASK_SECONDS:
        group, _ = choose(together, BENCHMARK, method, metrics=[METRIC], allowed=ALLOWED)
        if group is not None and METRIC in group.metrics:
            found[method] = group
    return found
