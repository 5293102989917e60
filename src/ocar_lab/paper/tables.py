"""Table 1, Online CLEAR and the convex stream of the paper, with our numbers and its claims."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import get_args

from ocar.errors import ConfigError
from ocar.streams.split import Splits
from ocar_lab.paper.choice import choose, stale_settings
from ocar_lab.paper.commands import Command, make_command
from ocar_lab.paper.verdict import Claim, Verdict, changed_settings, check
from ocar_lab.published import METRICS, PUBLISHED, SEEDS, SPLITS, Published, published
from ocar_lab.runs import Group, Measured, Spread, groups
from ocar_lab.runs.paired import mean_interval
from ocar_lab.runs.texts import ABSOLUTE

TABLE1 = ("split-cifar100", "split-tinyimagenet")
"""The two halves of Table 1."""

OURS = ("ocar", "ocar-ace")
"""The methods that the paper claims are above every baseline in AAA and WC-Acc."""

BEST = "ocar-ace"
"""The method that the paper claims is the best."""

BEST_BASE = {"split-cifar100": "ocar", "split-tinyimagenet": "er-ace"}
"""The base method that the paper's text names as the best in Acc: not combined with another."""

STAND_IN = "pacs"
"""A small domain-incremental benchmark that is easy to get, unlike CLEAR."""

FAR = 2.0
"""Standard deviations beyond which a difference is marked."""

DEFINITION = (
    "(ours - paper) / sqrt(s_paper² + s_ours²), with means over seeds and sample standard "
    "deviations s; with one seed of ours, which has no spread, s_paper alone"
)
"""The difference in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A metric of a method, in per cent."""

    paper: Published | None  # the printed number; None if there is none
    ours: Spread | None  # from stored runs; None if none has the metric

    @property
    def deviations(self) -> float | None:
        """The difference in standard deviations; None if a number is missing."""
        return deviations(self.paper, self.ours) if self.paper and self.ours else None

    @property
    def paper_alone(self) -> bool:
        """Whether the difference is in the paper's standard deviations, since ours has none."""
        return bool(self.paper and self.ours and self.ours.std is None)

    @property
    def far(self) -> bool:
        """Whether the two are more than ``FAR`` standard deviations apart."""
        return self.deviations is not None and abs(self.deviations) > FAR


def deviations(paper: Published, ours: Spread) -> float:
    """The standard deviations by which our mean is above the paper's, see ``DEFINITION``.

    √(s_paper² + s_ours²) is the standard deviation of the difference of one run of each.
    """
    return (ours.mean - paper.mean) / math.hypot(paper.std, ours.std or 0.0)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method in a table."""

    method: str
    cells: Mapping[str, Cell]  # by metric
    seeds: tuple[int, ...]  # ours
    hash: str | None  # of the chosen configuration; None if there is none
    #: Ours, where none are published; other splits, another Fisher, those of an earlier preset.
    settings: Mapping[str, object]
    left_out: tuple[Group, ...]  # other settings than the published, or fewer seeds


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper with our numbers."""

    benchmark: str
    stands_in_for: str | None  # the paper's benchmark; None if this is it
    metrics: tuple[str, ...]  # the columns
    rows: tuple[Row, ...]  # in the paper's order
    verdicts: tuple[Verdict, ...]  # on the paper's claims
    commands: tuple[Command, ...]  # one for each row that lacks a cell or a seed


def table1(runs: Sequence[Measured], benchmark: str = "split-cifar100") -> PaperTable:
    """One half of Table 1, from stored runs or kept results of any benchmark.

    The claims: OCAR and OCAR-ACE are above every baseline in AAA and WC-Acc. A baseline is a row of
    another method for which the paper printed the metric; the i.i.d. row is none. Without OCAR-ACE
    the best Acc is that of OCAR on Split-CIFAR100 and of ER-ACE on Split-TinyImageNet. The probe of
    OCAR is above every baseline and i.i.d. training. OCAR-ACE is the best in every metric but the
    probe. On Split-TinyImageNet OCAR-DER++ fails, here: is below ER.

    Raises:
        ConfigError: Table 1 does not have the benchmark.
    """
    if benchmark not in TABLE1:
        raise ConfigError(f"Invalid {benchmark=}. Must be one of {', '.join(TABLE1)}.")

    def above(leader: str, metric: str, named: str, *without: str) -> Claim:
        rows = PUBLISHED[benchmark].items()
        others = tuple(n for n, found in rows if metric in found and n not in (leader, *without))
        return Claim(metric=metric, leaders=(leader,), others=others, others_named=named)

    base = "er-iid", "ocar-der++", BEST  # not among the paper's base methods
    claims = [
        *_claims(benchmark, ("aaa", "wc_acc"), OURS),
        above(BEST_BASE[benchmark], "acc", "every other base method", *base),
        above("ocar", "probe", "every baseline and i.i.d. training", *base[1:]),
        *(above(BEST, m, "every other method", "er-iid") for m in ("acc", "aaa", "wc_acc")),
    ]
    if not PUBLISHED[benchmark]["ocar-der++"]:
        fails = ("ocar-der++",)
        named = "ocar-der++, which fails,"
        claims.append(Claim(metric="acc", leaders=("er",), others=fails, others_named=named))
    return _table(runs, benchmark, METRICS, claims)


def clear_tables(runs: Sequence[Measured]) -> tuple[PaperTable, PaperTable]:
    """The table of Online CLEAR, and the same methods on PACS, which stands in for it.

    The claim: OCAR is above ER and LPR in all three metrics. The paper has no numbers for PACS.
    """
    metrics = ("acc", "aaa", "wc_acc")
    claims = _claims("clear", metrics, ("ocar",))
    return (
        _table(runs, "clear", metrics, claims),
        _table(runs, STAND_IN, metrics, claims, stands_in_for="clear"),
    )


def convex_table(runs: Sequence[Measured]) -> PaperTable:
    """The convex stream, of which the paper has a figure and no numbers.

    The claims: OCAR has the lowest L_p and L_s; NGD has less L_p than EWC, and more L_s.
    """

    def least(metric: str, leader: str, *others: str) -> Claim:
        named = ", ".join(others)
        return Claim(
            metric=metric, leaders=(leader,), others=others, others_named=named, lower=True
        )

    others = ("er", "ewc", "ngd")
    claims = [
        *(least(metric, "ocar", *others) for metric in ("l_p", "l_s")),
        least("l_p", "ngd", "ewc"),
        least("l_s", "ewc", "ngd"),
    ]
    return _table(runs, "convex", ("l_p", "l_s"), claims, methods=(*others, "ocar"))


def _claims(benchmark: str, metrics: Sequence[str], leaders: tuple[str, ...]) -> list[Claim]:
    rows = {n: numbers for n, numbers in PUBLISHED[benchmark].items() if not n.startswith("ocar")}
    return [
        Claim(metric=m, leaders=leaders, others=tuple(n for n in rows if m in rows[n]))
        for m in metrics
    ]


def _table(
    runs: Sequence[Measured],
    benchmark: str,
    metrics: tuple[str, ...],
    claims: Sequence[Claim],
    *,
    methods: Sequence[str] = (),
    stands_in_for: str | None = None,
) -> PaperTable:
    together, methods = groups(runs), methods or [*PUBLISHED[stands_in_for or benchmark]]
    rows = tuple(_row(together, benchmark, method, metrics) for method in methods)
    claimed = {(name, c.metric) for c in claims for name in (*c.leaders, *c.others)}
    commands = [_command(benchmark, row, claimed) for row in rows]
    kinds: tuple[Splits | None, ...] = get_args(Splits) if benchmark in SPLITS else (None,)
    compared = {
        kind: [_row(together, benchmark, method, metrics, splits=kind) for method in methods]
        for kind in kinds
    }
    return PaperTable(
        benchmark=benchmark,
        stands_in_for=stands_in_for,
        metrics=metrics,
        rows=rows,
        verdicts=tuple(_verdict(claim, compared, runs) for claim in claims),
        commands=tuple(command for command in commands if command is not None),
    )


def _verdict(
    claim: Claim, compared: Mapping[Splits | None, Sequence[Row]], runs: Sequence[Measured]
) -> Verdict:
    """The verdict on the splits on which the fewest methods are missing; first the published.

    A seed is a class order too, so the means are over the seeds that all methods have.
    """
    found = []
    for splits, rows in compared.items():
        named = {row.hash: row for row in rows if row.method in (*claim.leaders, *claim.others)}
        numbers = {
            row.method: {
                run.seed: scale(claim.metric) * value
                for run in runs
                if run.hash == row.hash
                and (value := getattr(run.summary, claim.metric, None)) is not None
            }
            for row in named.values()
            if row.cells[claim.metric].ours
        }
        seeds = sorted(set.intersection(*map(set, numbers.values()))) if numbers else []
        one = check(claim, {n: fmean(own[s] for s in seeds) for n, own in numbers.items() if seeds})
        closest = [[numbers[name][seed] for seed in seeds] for name in one.closest or ()]
        interval = mean_interval([a - b for a, b in zip(*closest, strict=True)])
        changed = changed_settings({row.method: row.settings for row in named.values()})
        found.append(
            replace(one, splits=splits, seeds=tuple(seeds), interval=interval, changed=changed)
        )
    return min(found, key=lambda verdict: (len(verdict.missing), verdict.splits != "published"))


def _row(
    together: Sequence[Group],
    benchmark: str,
    method: str,
    metrics: Sequence[str],
    *,
    splits: Splits | None = None,
) -> Row:
    group, others = choose(together, benchmark, method, metrics=metrics, splits=splits)
    printed = published(benchmark, method)
    ours = {} if group is None else {n: _scaled(n, own) for n, own in group.metrics.items()}
    return Row(
        method=method,
        cells={name: Cell(paper=printed.get(name), ours=ours.get(name)) for name in metrics},
        seeds=() if group is None else group.seeds,
        hash=None if group is None else group.hash,
        settings={} if group is None else group.changed,
        left_out=tuple(others),
    )


def scale(metric: str) -> int:
    """100 for a metric that is shown in per cent."""
    return 1 if metric in ABSOLUTE else 100


def _scaled(metric: str, own: Spread) -> Spread:
    std = None if own.std is None else scale(metric) * own.std
    return Spread(mean=scale(metric) * own.mean, std=std, count=own.count)


def _command(benchmark: str, row: Row, claimed: Collection[tuple[str, str]]) -> Command | None:
    """How to complete a row; None if neither the paper nor a claim asks for more.

    ``claimed`` are the methods and metrics of claims.
    """
    cells, settings = row.cells.items(), dict(row.settings)
    stale = {"splits", *stale_settings(settings)}
    elsewhere = not stale.isdisjoint(settings)  # then all seeds are to be run anew
    settings = {n: v for n, v in settings.items() if n not in stale}
    asked = [(n, cell) for n, cell in cells if cell.paper or (row.method, n) in claimed]
    missing = [name for name, cell in asked if cell.ours is None]
    again = bool(missing) or elsewhere
    if not asked or (not again and len(row.seeds) >= SEEDS):
        return None
    seeds = [seed for seed in range(SEEDS) if again or seed not in row.seeds]
    return make_command(benchmark, row.method, metrics=missing, seeds=seeds, settings=settings)
