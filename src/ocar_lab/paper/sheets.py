"""The paper's tables with ours, as texts and as plain values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ocar_lab.paper.choice import stale_settings
from ocar_lab.paper.claims import Checked
from ocar_lab.paper.commands import Command
from ocar_lab.paper.tables import DEFINITION, Cell, PaperTable, Row
from ocar_lab.paper.times import TimesTable
from ocar_lab.paper.verdict import Claim, Verdict, changed_settings
from ocar_lab.runs import Spread
from ocar_lab.runs.paired import listed
from ocar_lab.runs.texts import TITLES, Sheet, describe, seeds_text, settings_text

FAR, PAPER_ALONE = "!", "°"
"""Marks of a difference: beyond two standard deviations, and in the paper's deviation alone."""

CLEAR = "*"
"""Marks a claim that chance does not explain, or its opposite."""

NOT_PRESENT = "Not of the present preset"

LEGEND = (
    "difference: (ours - paper) / sqrt(s_paper² + s_ours²), in standard deviations; "
    f"{FAR} beyond 2, {PAPER_ALONE} in the paper's alone, since one seed has no spread"
)


def table_sheet(table: PaperTable) -> Sheet:
    """A table of accuracies: for each method the paper's line, ours and the difference."""
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
            *_command_notes(table.commands, table.commands),
        ),
        commands=tuple(command.line for command in table.commands),
    )


def _lines(row: Row, metrics: Sequence[str]) -> list[tuple[str, ...]]:
    cells = [row.cells[name] for name in metrics]
    lines: list[tuple[str, ...]] = []
    if any(cell.paper for cell in cells):
        texts = (f"{c.paper.mean:.1f} ± {c.paper.std:.1f}" if c.paper else "" for c in cells)
        lines.append(("paper", *texts))
    if any(cell.ours for cell in cells):
        seeds = f"{len(row.seeds)} seed{'s' if len(row.seeds) > 1 else ''}"
        own = ", own splits" if "splits" in row.settings else ""
        lines.append((f"ours, {seeds}{own}", *(_ours_text(cell.ours) for cell in cells)))
    if any(cell.deviations is not None for cell in cells):
        lines.append(("difference", *map(_difference_text, cells)))
    first, *others = lines or [("none", *("" for _ in cells))]
    # Only the first line has the method's name, so that the table fits a terminal.
    return [(f"{row.method}: {first[0]}", *first[1:]), *((f"  {o[0]}", *o[1:]) for o in others)]


def _ours_text(ours: Spread | None) -> str:
    if ours is None:
        return ""
    return f"{ours.mean:.1f}" if ours.std is None else f"{ours.mean:.1f} ± {ours.std:.1f}"


def _difference_text(cell: Cell) -> str:
    if cell.deviations is None:
        return ""
    marks = (PAPER_ALONE if cell.paper_alone else "") + (f" {FAR}" if cell.far else "")
    return f"{cell.deviations:+z.1f}{marks}"


def _difference_notes(table: PaperTable) -> list[str]:
    cells = {
        f"{row.method} {TITLES[name]} {cell.deviations:+.1f}": cell
        for row in table.rows
        for name, cell in row.cells.items()
        if cell.deviations is not None
    }
    if not cells:
        return []
    far = [text for text, cell in cells.items() if cell.far]
    return [
        LEGEND,
        f"More than 2 standard deviations off: {', '.join(far) or 'none'}; "
        f"{len(far)} of {len(cells)} numbers.",
    ]


def claim_text(claim: Claim) -> str:
    """A claim in a few words."""
    relation = "below" if claim.lower else "above"
    leaders = " and ".join(claim.leaders)
    return f"{leaders} {relation} {claim.others_named} in {TITLES[claim.metric]}"


def claims_sheets(checked: Checked) -> list[Sheet]:
    """Every claim of the paper, one table for each subject, splits and seeds.

    A row says whether the claim holds, and the numbers that decide it.
    """
    together: dict[str, list[Verdict]] = {}
    for about, verdicts in checked.verdicts.items():
        for verdict in verdicts:
            together.setdefault(f"{about}{_splits_text(verdict)}", []).append(verdict)
    sheets = [
        Sheet(
            title=title,
            header=("claim of the paper", "here", "the closest"),
            rows=tuple(
                (
                    claim_text(v.claim),
                    f"{v.state}{f' {CLEAR}' if v.clear else ''}",
                    "; ".join(filter(None, (_closest(v), _missing(v)))),
                )
                for v in own
            ),
            notes=_changed_notes(own),
        )
        for title, own in together.items()
    ]
    states = [verdict.state for own in together.values() for verdict in own]
    counts = "; ".join(f"{state}: {states.count(state)}" for state in dict.fromkeys(states))
    lines = _check_commands(checked)
    notes = (
        f"{counts}. A claim is open if nothing is against it and some methods have no number.",
        f"{CLEAR} the 95 % interval of the difference of the closest two, paired by seed, "
        "excludes 0. Without it another order may be chance.",
        "Means are compared on the same splits, published or own, where fewer are missing, and "
        "over the seeds that all methods have.",
        "A baseline is a method for which the paper printed the metric. It has no Probed of lpr, "
        "onpro and ocm.",
        *_command_notes(lines, checked.commands),
    )
    last = sheets[-1]
    sheets[-1] = dataclasses.replace(last, notes=(*last.notes, *notes), commands=lines)
    return sheets


def _check_commands(checked: Checked) -> tuple[str, ...]:
    made = (f"ocar paper table1 --make --benchmark {name}" for name in checked.made)
    return (*made, *(command.line for command in checked.commands))


def _changed_notes(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The methods whose runs do not have the present preset, each once."""
    changed = {name: own for verdict in verdicts for name, own in verdict.changed.items()}
    return _settings_note(NOT_PRESENT, changed)


def _splits_text(verdict: Verdict) -> str:
    """The splits and seeds of all numbers."""
    if not verdict.values or not verdict.seeds:
        return ""
    kind = "" if verdict.splits is None else f"{verdict.splits} splits, "
    return f" ({kind}seed{'s' if len(verdict.seeds) > 1 else ''} {listed(verdict.seeds)})"


def _closest(verdict: Verdict) -> str:
    """The worst of the leaders and the best of the others, with their numbers."""
    names = verdict.closest or ()
    return ", ".join(f"{name} {verdict.values[name]:.1f}" for name in names)


def _missing(verdict: Verdict) -> str:
    return f"{len(verdict.missing)} missing" if verdict.missing else ""


def claims_document(checked: Checked) -> dict[str, Any]:
    """The claims for JSON."""
    return {
        "claims": {about: [*map(_verdict, own)] for about, own in checked.verdicts.items()},
        "missing": _check_commands(checked),
    }


def verdict_text(verdict: Verdict, *, of: str | None = None) -> str:
    """A verdict on a claim of the paper, in one line; ``of`` another benchmark, if it is."""
    claim, values = verdict.claim, verdict.values
    what = "The paper's claim" if of is None else f"The paper's claim about {of}, tested here"
    head = f"{what}, {claim_text(claim)}{_splits_text(verdict)}: {verdict.state}"
    if not values:
        return f"{head}, there are no numbers yet."
    if verdict.against:
        pairs = (f"{a} {values[a]:.1f}, {b} {values[b]:.1f}" for a, b in verdict.against)
        head += f", because of {'; '.join(pairs)}"
    elif verdict.closest is not None:
        leader, other = verdict.closest
        head += ", holds so far" if verdict.missing else ""
        head += f": {leader} {values[leader]:.1f}, {other} {values[other]:.1f}"
    return f"{head}. Missing: {', '.join(verdict.missing)}." if verdict.missing else f"{head}."


def _choice_notes(rows: Sequence[Row]) -> list[str]:
    ours: dict[str, dict[str, object]] = {}
    stale: dict[str, dict[str, object]] = {}
    for method, own in changed_settings({row.method: row.settings for row in rows}).items():
        for name, value in own.items():
            side = stale if name in stale_settings(own) else ours
            side.setdefault(method, {})[name] = value
    elsewhere = [row.method for row in rows if "splits" in row.settings]
    left_out = [group for row in rows for group in row.left_out]
    others = [
        f"{describe(group)} {group.hash} with {seeds_text(group)} finished"
        for group in left_out
        if not group.is_part
    ]
    parts = sum(group.is_part for group in left_out)
    notes = {
        "On other class orders and validation data than the published (splits=own): "
        f"{', '.join(elsewhere)}.": elsewhere,
        "Left out, because they have other settings or splits than the published, or fewer seeds: "
        f"{'; '.join(others)}.": others,
        f"Left out, because they saw part of the stream: {parts} configuration(s).": parts,
    }
    return [
        *_settings_note("No settings were published for these; ours are", ours),
        *_settings_note(NOT_PRESENT, stale),
        *(text for text, about in notes.items() if about),
    ]


def _settings_note(what: str, changed: Mapping[str, Mapping[str, object]]) -> tuple[str, ...]:
    texts = [f"{method} ({settings_text(own)})" for method, own in changed.items()]
    return (f"{what}: {', '.join(texts)}.",) if texts else ()


def _command_notes(listed: Sequence[object], commands: Sequence[Command]) -> list[str]:
    choosing = [command for command in commands if command.to_choose]
    texts = [f"{', '.join(map(str.upper, c.to_choose))} of {c.method}" for c in choosing]
    notes = [f"No value was published, choose one: {'; '.join(texts)}."] if texts else []
    return [*notes, "To make what is missing, then `ocar keep runs`:"] if listed else []


def times_sheet(table: TimesTable) -> Sheet:
    """The table of training times: seconds, and ratios to ER."""
    notes = [
        "The row der++ is the paper's DER.",
        verdict_text(table.verdict),
        "The claim is from the paper's text; in its table MIR takes 31 s and OCAR 38 s.",
        *_changed_notes([table.verdict]),
        "A process pays for its start. experiments/first_task_times.py measures each method in its "
        "own process, after a warm-up.",
    ]
    if table.other_devices:
        notes.append(f"Left out: runs on {', '.join(table.other_devices)}.")
    ours = f"ours ({table.device or 'none yet'})"
    return Sheet(
        title="split-cifar100: seconds of training on the first task, without evaluation",
        header=("method", "paper (V100)", ours, "paper / ER", "ours / ER", "seeds"),
        rows=tuple(
            (
                row.method,
                f"{row.paper:.0f}",
                _ours_text(row.ours),
                f"{row.paper_ratio:.1f}",
                "" if row.ratio is None else f"{row.ratio:.1f}",
                "" if row.ours is None else str(row.ours.count),
            )
            for row in table.rows
        ),
        notes=(*notes, *_command_notes(table.commands, table.commands)),
        commands=tuple(command.line for command in table.commands),
    )


def table_document(tables: Sequence[PaperTable]) -> dict[str, Any]:
    """Tables of accuracies for JSON; all numbers in per cent."""
    documents = []
    for table in tables:
        rows = [
            {
                **vars(row),
                "cells": {name: _cell(cell) for name, cell in row.cells.items()},
                "left_out": [
                    {"hash": g.hash, "changed": g.changed, "seeds": g.seeds} for g in row.left_out
                ],
            }
            for row in table.rows
        ]
        own = {**vars(table), "rows": rows, "claims": [*map(_verdict, table.verdicts)]}
        own["missing"] = [vars(command) for command in own.pop("commands")]
        del own["verdicts"]
        documents.append(own)
    return {"unit": "per cent", "deviations": DEFINITION, "tables": documents}


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "paper": None if cell.paper is None else cell.paper._asdict(),
        "ours": None if cell.ours is None else vars(cell.ours),
        "deviations": cell.deviations,
        "paper_alone": cell.paper_alone,
        "far": cell.far,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    document = {**vars(verdict.claim), **vars(verdict)}
    document["lower_is_better"] = document.pop("lower")
    del document["claim"]
    return document


def times_document(table: TimesTable) -> dict[str, Any]:
    """The table of training times for JSON, in seconds; ratios are to ER."""
    return {
        "unit": "seconds",
        "device": table.device,
        "other_devices": table.other_devices,
        "rows": [dataclasses.asdict(row) for row in table.rows],
        "claims": [_verdict(table.verdict)],
        "missing": [vars(command) for command in table.commands],
    }
