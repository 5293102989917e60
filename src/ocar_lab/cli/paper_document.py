"""The paper's tables with ours beside them, as plain values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ocar_lab.paper import Cell, PaperTable, Row, TimesTable, Verdict
from ocar_lab.paper.cells import DEFINITION


def table_document(tables: Sequence[PaperTable]) -> dict[str, Any]:
    """Tables of accuracies; all numbers in per cent.

    Args:
        tables: The tables.
    """
    return {"unit": "per cent", "deviations": DEFINITION, "tables": [_table(t) for t in tables]}


def _table(table: PaperTable) -> dict[str, Any]:
    return {
        "benchmark": table.benchmark,
        "stands_in_for": table.stands_in_for,
        "metrics": table.metrics,
        "rows": [_row(row) for row in table.rows],
        "claims": [_verdict(verdict) for verdict in table.verdicts],
        "missing": [dataclasses.asdict(command) for command in table.commands],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "method": row.method,
        "seeds": row.seeds,
        "hash": row.hash,
        "settings": row.settings,
        "cells": {metric: _cell(cell) for metric, cell in row.cells.items()},
        "left_out": [
            {"hash": group.hash, "changed": group.changed, "seeds": group.seeds}
            for group in row.left_out
        ],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "paper": None if cell.paper is None else cell.paper._asdict(),
        "ours": None if cell.ours is None else dataclasses.asdict(cell.ours),
        "deviations": cell.deviations,
        "paper_alone": cell.paper_alone,
        "far": cell.far,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "metric": verdict.claim.metric,
        "leaders": verdict.claim.leaders,
        "others": verdict.claim.others,
        "lower_is_better": verdict.claim.lower,
        "state": verdict.state,
        "against": verdict.against,
        "missing": verdict.missing,
        "values": verdict.values,
    }


def times_document(table: TimesTable) -> dict[str, Any]:
    """The table of training times, in seconds; ratios are to ER.

    Args:
        table: The table.
    """
    return {
        "unit": "seconds",
        "device": table.device,
        "other_devices": table.other_devices,
        "rows": [dataclasses.asdict(row) for row in table.rows],
        "claims": [_verdict(table.verdict)],
        "missing": [dataclasses.asdict(command) for command in table.commands],
    }
