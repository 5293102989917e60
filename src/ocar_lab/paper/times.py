"""The paper's table of training times: seconds for the first task of Split-CIFAR100.

The seconds are of another machine, so what compares is each method's time over that of ER. All
of ours are of one device, the one with the most of the methods, and of runs that had it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ocar_lab.paper.choice import Choice, choose
from ocar_lab.paper.claims import Claim, Verdict, check
from ocar_lab.paper.commands import Command, make_command
from ocar_lab.published import FIRST_TASK_SECONDS
from ocar_lab.runs import Group, Measured, Spread, groups

BENCHMARK = "split-cifar100"
METRIC = "first_task_seconds"
REFERENCE = "er"

ALLOWED = ("max_tasks", "every")
"""What a run may differ in: neither changes how long the training on the first task takes."""

FLAGS = ("--max-tasks", "1", "--every", "task", "--no-probe", "--workers", "1")
"""One task, little evaluation, and nothing beside it on the device."""

CLAIM = Claim(metric=METRIC, leaders=("ocar",), others=("mir", "scr", "lpr"), lower=True)
"""As the paper's text has it, though its table has MIR at 31 s and OCAR at 38 s."""


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """A method in the table."""

    method: str
    """Its name."""

    paper: float
    """Seconds that the paper printed."""

    paper_ratio: float
    """The same over those of ER."""

    ours: Spread | None
    """Our seconds; None if there are none."""

    ratio: float | None
    """Our mean over that of ER; None without both."""


@dataclass(frozen=True, kw_only=True)
class TimesTable:
    """The table of training times with ours beside it."""

    device: str | None
    """What ours were measured on; None if there are none."""

    other_devices: tuple[str, ...]
    """Devices whose runs were left out; runs with others beside them are not even counted."""

    rows: tuple[TimeRow, ...]
    """The rows, in the paper's order."""

    verdict: Verdict
    """How the paper's claim stands in our numbers: OCAR takes less time than MIR, SCR and LPR."""

    commands: tuple[Command, ...]
    """How to make what is missing."""


def times_table(runs: Sequence[Measured]) -> TimesTable:
    """The table of training times.

    Args:
        runs: Stored runs or kept results, of any benchmark.
    """
    there = [
        run for run in runs if run.benchmark == BENCHMARK and run.summary is not None and run.alone
    ]
    by_device = {
        device: _choices(groups(run for run in there if run.device == device))
        for device in dict.fromkeys(run.device for run in there)
    }
    counts = Counter({device: len(chosen) for device, chosen in by_device.items() if chosen})
    device = counts.most_common(1)[0][0] if counts else None
    chosen = {} if device is None else by_device[device]
    reference = chosen.get(REFERENCE)
    rows = tuple(
        TimeRow(
            method=method,
            paper=seconds,
            paper_ratio=seconds / FIRST_TASK_SECONDS[REFERENCE],
            ours=chosen.get(method),
            ratio=chosen[method].mean / reference.mean if method in chosen and reference else None,
        )
        for method, seconds in FIRST_TASK_SECONDS.items()
    )
    return TimesTable(
        device=device,
        other_devices=tuple(name for name in counts if name != device),
        rows=rows,
        verdict=check(CLAIM, {method: ours.mean for method, ours in chosen.items()}),
        commands=tuple(
            make_command(BENCHMARK, row.method, metrics=[METRIC], seeds=[0], flags=FLAGS)
            for row in rows
            if row.ours is None
        ),
    )


def _choices(together: Sequence[Group]) -> dict[str, Spread]:
    """The seconds of each method that has any."""
    choices: dict[str, Choice] = {
        method: choose(together, BENCHMARK, method, metrics=[METRIC], allowed=ALLOWED)
        for method in FIRST_TASK_SECONDS
    }
    return {
        method: choice.group.metrics[METRIC]
        for method, choice in choices.items()
        if choice.group is not None and METRIC in choice.group.metrics
    }
