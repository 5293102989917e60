"""The paper's tables with ours beside them, as texts."""

from __future__ import annotations

from collections.abc import Sequence

from ocar_lab.cli.tables import Sheet
from ocar_lab.paper import Cell, Command, PaperTable, Row, TimesTable, Verdict
from ocar_lab.runs import Spread
from ocar_lab.runs.texts import DETAILS, MAIN, describe, seeds_text

TITLES = MAIN | DETAILS

FAR, PAPER_ALONE = "!", "°"
"""Marks of a difference: more than two standard deviations, and in the paper's alone."""

LEGEND = (
    "difference: (ours - paper) / sqrt(s_paper² + s_ours²), in standard deviations; "
    f"{FAR} beyond 2, {PAPER_ALONE} in the paper's alone, since one seed has no spread"
)


def table_sheet(table: PaperTable) -> Sheet:
    """A table of accuracies: for each method the paper's line, ours and the difference.

    Args:
        table: The numbers.
    """
    what = table.benchmark
    if table.stands_in_for is not None:
        what += f", a stand-in for {table.stands_in_for}, without numbers of the paper"
    return Sheet(
        title=f"{what}: mean ± std over seeds, in %",
        header=("method", *(TITLES[name] for name in table.metrics)),
        rows=tuple(line for row in table.rows for line in _lines(row, table.metrics)),
        notes=(
            *_difference_notes(table),
            *(verdict_text(verdict, of=table.stands_in_for) for verdict in table.verdicts),
            *_choice_notes(table.rows),
            *command_notes(table.commands),
        ),
        commands=tuple(command.line for command in table.commands),
    )


def _lines(row: Row, metrics: Sequence[str]) -> list[tuple[str, ...]]:
    cells = [row.cells[name] for name in metrics]
    lines: list[tuple[str, ...]] = []
    if any(cell.paper for cell in cells):
        lines.append(("paper", *(paper_text(cell) for cell in cells)))
    if any(cell.ours for cell in cells):
        seeds = f"{len(row.seeds)} seed{'s' if len(row.seeds) > 1 else ''}"
        lines.append((f"ours, {seeds}", *(ours_text(cell.ours) for cell in cells)))
    if any(cell.deviations is not None for cell in cells):
        lines.append(("difference", *(difference_text(cell) for cell in cells)))
    lines = lines or [("none", *("" for _ in cells))]
    # The name stands before the first line only; a table with all of it has to fit a terminal.
    first, *others = lines
    return [(f"{row.method}: {first[0]}", *first[1:]), *((f"  {o[0]}", *o[1:]) for o in others)]


def paper_text(cell: Cell) -> str:
    """The paper's number."""
    return "" if cell.paper is None else f"{cell.paper.mean:.1f} ± {cell.paper.std:.1f}"


def ours_text(ours: Spread | None) -> str:
    """Our number, with its spread if it has one."""
    if ours is None:
        return ""
    return f"{ours.mean:.1f}" if ours.std is None else f"{ours.mean:.1f} ± {ours.std:.1f}"


def difference_text(cell: Cell) -> str:
    """The difference in standard deviations, with its marks."""
    if cell.deviations is None:
        return ""
    marks = (PAPER_ALONE if cell.paper_alone else "") + (f" {FAR}" if cell.far else "")
    return f"{cell.deviations:+z.1f}{marks}"


def _difference_notes(table: PaperTable) -> list[str]:
    cells = [
        (row.method, name, row.cells[name], row.cells[name].deviations)
        for row in table.rows
        for name in table.metrics
    ]
    there = [cell for cell in cells if cell[3] is not None]
    if not there:
        return []
    far = [
        f"{method} {TITLES[name]} {value:+.1f}" for method, name, cell, value in there if cell.far
    ]
    return [
        LEGEND,
        f"More than 2 standard deviations off: {', '.join(far) or 'none'}; "
        f"{len(far)} of {len(there)} numbers.",
    ]


def verdict_text(verdict: Verdict, *, others: str = "every baseline", of: str | None = None) -> str:
    """How a claim of the paper's stands, in one line.

    Args:
        verdict: The claim and our numbers.
        others: What the leaders are compared with, in words.
        of: The benchmark that the claim was made of, if it is another.
    """
    claim = verdict.claim
    what = "The paper's claim" if of is None else f"The paper's claim of {of}, tried here"
    relation = "below" if claim.lower else "above"
    head = (
        f"{what}, {' and '.join(claim.leaders)} {relation} {others} in {TITLES[claim.metric]}: "
        f"{verdict.state}"
    )
    if not verdict.values:
        return f"{head}, nothing is there yet."
    reasons = [
        f"{leader} {verdict.values[leader]:.1f}, {other} {verdict.values[other]:.1f}"
        for leader, other in verdict.against
    ]
    if reasons:
        head += f", because of {'; '.join(reasons)}"
    elif verdict.closest is not None:
        leader, other = verdict.closest
        head += ", holds so far" if verdict.missing else ""
        head += f": {leader} {verdict.values[leader]:.1f}, {other} {verdict.values[other]:.1f}"
    return f"{head}. Missing: {', '.join(verdict.missing)}." if verdict.missing else f"{head}."


def _choice_notes(rows: Sequence[Row]) -> list[str]:
    ours = [row for row in rows if row.settings.keys() - {"fisher"}]
    roots = [row for row in rows if row.settings and row not in ours]
    left_out = [group for row in rows for group in row.left_out]
    others = [
        f"{describe(group)} {group.hash} with {seeds_text(group)} finished"
        for group in left_out
        if not group.is_part
    ]
    parts = sum(group.is_part for group in left_out)
    notes = []
    if ours:
        notes.append(f"No settings were published for these; ours are: {_settings(ours)}.")
    if roots:
        notes.append(f"With another root of the Fisher than by default: {_settings(roots)}.")
    if others:
        notes.append(
            "Left out, since of other settings than the published or of fewer seeds: "
            f"{'; '.join(others)}."
        )
    if parts:
        notes.append(f"Left out, since of a part of the stream: {parts} configuration(s).")
    return notes


def _settings(rows: Sequence[Row]) -> str:
    """Methods with what they were given."""
    given = (", ".join(f"{name}={value}" for name, value in row.settings.items()) for row in rows)
    return ", ".join(f"{row.method} ({text})" for row, text in zip(rows, given, strict=True))


def command_notes(commands: Sequence[Command]) -> list[str]:
    """What to say above the commands for what is missing."""
    if not commands:
        return []
    notes = []
    choosing = [command for command in commands if command.to_choose]
    if choosing:
        texts = [f"{', '.join(map(str.upper, c.to_choose))} of {c.method}" for c in choosing]
        notes.append(f"No value was published and one is to be chosen: {'; '.join(texts)}.")
    return [*notes, "To make what is missing, then `ocar keep runs`:"]


def times_sheet(table: TimesTable) -> Sheet:
    """The table of training times: seconds, and over those of ER.

    Args:
        table: The numbers.
    """
    notes = [
        "The row der++ is the one that the paper calls DER.",
        verdict_text(table.verdict, others=", ".join(table.verdict.claim.others)),
        "That is the paper's text; in its table MIR takes 31 s and OCAR 38 s.",
    ]
    if table.other_devices:
        notes.append(f"Left out: runs on {', '.join(table.other_devices)}.")
    rows = [
        (
            row.method,
            f"{row.paper:.0f}",
            ours_text(row.ours),
            f"{row.paper_ratio:.1f}",
            "" if row.ratio is None else f"{row.ratio:.1f}",
            "" if row.ours is None else str(row.ours.count),
        )
        for row in table.rows
    ]
    return Sheet(
        title="split-cifar100: seconds of training on the first task, without evaluation",
        header=(
            "method",
            "paper (V100)",
            f"ours ({table.device or 'none yet'})",
            "paper / ER",
            "ours / ER",
            "seeds",
        ),
        rows=tuple(rows),
        notes=(*notes, *command_notes(table.commands)),
        commands=tuple(command.line for command in table.commands),
    )
