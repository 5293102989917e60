"""The paper's tables of accuracies: Table 1 and that of Online CLEAR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ocar.errors import ConfigError
from ocar_lab.paper.cells import Cell, per_cent
from ocar_lab.paper.choice import Choice, choose
from ocar_lab.paper.claims import Claim, Verdict, check
from ocar_lab.paper.commands import Command, make_command
from ocar_lab.published import METRICS, PUBLISHED, SEEDS
from ocar_lab.runs import Group, Measured, groups

TABLE1 = ("split-cifar100", "split-tinyimagenet")
"""The two halves of Table 1."""

OURS = ("ocar", "ocar-ace")
"""What the paper says is above every baseline in AAA and WC-Acc."""

STAND_IN = "pacs"
"""A domain-incremental benchmark that is small and easy to get, unlike CLEAR."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method in a table."""

    method: str
    """Its name."""

    cells: Mapping[str, Cell]
    """Each metric of the table."""

    seeds: tuple[int, ...]
    """Our seeds."""

    hash: str | None
    """What the configuration that was taken is known by; None if there is none."""

    settings: Mapping[str, object]
    """Settings of ours where none are published."""

    left_out: tuple[Group, ...]
    """Other configurations of the method: not the published settings, or fewer seeds."""


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper with ours beside it."""

    benchmark: str
    """Name of the benchmark."""

    stands_in_for: str | None
    """The paper's benchmark that this one stands in for; None if it is the paper's own."""

    metrics: tuple[str, ...]
    """The columns, by their names in ``Summary``."""

    rows: tuple[Row, ...]
    """The rows, in the paper's order."""

    verdicts: tuple[Verdict, ...]
    """How the paper's claims stand in our numbers."""

    commands: tuple[Command, ...]
    """How to make what is missing: one for each row that lacks a cell or a seed."""


def table1(runs: Sequence[Measured], benchmark: str = "split-cifar100") -> PaperTable:
    """One half of Table 1.

    The claim: OCAR and OCAR-ACE are above every baseline in AAA and WC-Acc. A baseline is a row
    of another method for which the paper printed the metric, so the i.i.d. row is none.

    Args:
        runs: Stored runs or kept results, of any benchmark.
        benchmark: Which half.

    Raises:
        ConfigError: Table 1 has no such benchmark.
    """
    if benchmark not in TABLE1:
        raise ConfigError(f"Invalid {benchmark=}. Must be one of {', '.join(TABLE1)}.")
    claims = _claims(benchmark, ("aaa", "wc_acc"), OURS)
    return _table(groups(runs), benchmark, METRICS, claims)


def clear_tables(runs: Sequence[Measured]) -> tuple[PaperTable, PaperTable]:
    """The table of Online CLEAR, and the same methods on PACS, which stands in for it.

    The claim: OCAR is above ER and LPR in all three metrics. On PACS the paper has no numbers.

    Args:
        runs: Stored runs or kept results, of any benchmark.
    """
    together = groups(runs)
    metrics = ("acc", "aaa", "wc_acc")
    claims = _claims("clear", metrics, ("ocar",))
    return (
        _table(together, "clear", metrics, claims),
        _table(together, STAND_IN, metrics, claims, stands_in_for="clear"),
    )


def _claims(benchmark: str, metrics: Sequence[str], leaders: tuple[str, ...]) -> list[Claim]:
    printed = PUBLISHED[benchmark]
    return [
        Claim(
            metric=metric,
            leaders=leaders,
            others=tuple(
                name
                for name, numbers in printed.items()
                if metric in numbers and not name.startswith("ocar")
            ),
        )
        for metric in metrics
    ]


def _table(
    together: Sequence[Group],
    benchmark: str,
    metrics: tuple[str, ...],
    claims: Sequence[Claim],
    *,
    stands_in_for: str | None = None,
) -> PaperTable:
    methods = PUBLISHED[stands_in_for or benchmark]
    rows = tuple(
        _row(choose(together, benchmark, method, metrics=metrics), benchmark, method, metrics)
        for method in methods
    )
    commands = [_command(benchmark, row, stand_in=stands_in_for is not None) for row in rows]
    return PaperTable(
        benchmark=benchmark,
        stands_in_for=stands_in_for,
        metrics=metrics,
        rows=rows,
        verdicts=tuple(check(claim, _means(rows, claim.metric)) for claim in claims),
        commands=tuple(command for command in commands if command is not None),
    )


def _row(choice: Choice, benchmark: str, method: str, metrics: Sequence[str]) -> Row:
    group = choice.group
    printed = PUBLISHED.get(benchmark, {}).get(method, {})
    ours = {} if group is None else group.metrics
    return Row(
        method=method,
        cells={
            metric: Cell(
                paper=printed.get(metric),
                ours=per_cent(ours[metric]) if metric in ours else None,
            )
            for metric in metrics
        },
        seeds=() if group is None else group.seeds,
        hash=None if group is None else group.hash,
        settings={} if group is None else group.changed,
        left_out=choice.others,
    )


def _means(rows: Sequence[Row], metric: str) -> dict[str, float]:
    cells = {row.method: row.cells[metric] for row in rows}
    return {name: cell.ours.mean for name, cell in cells.items() if cell.ours is not None}


def _command(benchmark: str, row: Row, *, stand_in: bool) -> Command | None:
    """How to complete a row; None if it is complete, or if the paper left it empty."""
    if stand_in:
        missing = [name for name, cell in row.cells.items() if cell.ours is None]
    else:
        missing = [name for name, cell in row.cells.items() if cell.missing]
        if all(cell.paper is None for cell in row.cells.values()):
            return None
    if not missing and len(row.seeds) >= SEEDS:
        return None
    seeds = [seed for seed in range(SEEDS) if missing or seed not in row.seeds]
    return make_command(benchmark, row.method, metrics=missing, seeds=seeds, settings=row.settings)
