"""What happens at the boundaries between tasks, as lines of a figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocar_lab.report.figures import Line, Methods, Timed, line
from ocar_lab.runs.columns import Columns, Floats
from ocar_lab.runs.timeline import band

BEFORE, AFTER = 10, 50
"""Most evaluations to show before and after a boundary."""


def boundaries(own: Timed) -> list[int]:
    """The first evaluation of each task but the first; an unfinished task does not count."""
    if own.iid or not own.columns.has_counts:
        return []
    firsts: list[int] = (np.flatnonzero(np.diff(own.columns.task)) + 1).tolist()
    return firsts if own.run.result is not None else firsts[:-1]


def window(columns: Columns, firsts: Sequence[int]) -> tuple[int, int]:
    """Evaluations before and after a boundary that all of some boundaries have."""
    counts = np.bincount(columns.task)
    before = min(int(counts[columns.task[first - 1]]) for first in firsts)
    after = min(int(counts[columns.task[first]]) for first in firsts)
    return min(BEFORE, before), min(AFTER, after)


def around(columns: Columns, firsts: Sequence[int], *, before: int, after: int) -> Floats:
    """Change of the accuracy on earlier tasks, mean over boundaries, ``(before + after,)``.

    Changes are against the last evaluation before the boundary, entry ``before - 1``.

    Args:
        columns: The evaluations of a run.
        firsts: The first evaluation after each boundary.
        before: Evaluations before the boundary, at least 1.
        after: Evaluations after it.
    """
    changes = []
    for first in firsts:
        rows = slice(first - before, first + after)
        earlier = columns.accuracy_up_to(int(columns.task[first - 1]), rows)
        changes.append(earlier - earlier[before - 1])
    found: Floats = np.mean(changes, axis=0)
    return found


def gap_lines(methods: Methods) -> tuple[Line, ...]:
    """The stability gap: change in points around a boundary, of each method."""
    found: list[Line] = []
    for method, runs in enumerate(methods):
        own = [(one.columns, firsts) for one in runs if (firsts := boundaries(one))]
        if own:
            windows = [window(*pair) for pair in own]
            before, after = min(w[0] for w in windows), min(w[1] for w in windows)
            offsets = np.arange(1 - before, after + 1, dtype=np.float64)
            changes = [100 * around(*pair, before=before, after=after) for pair in own]
            found += line(method, band([offsets] * len(changes), changes))
    return tuple(found)


def drop_lines(methods: Methods) -> tuple[Line, ...]:
    """The drop in points at each boundary, over the number of the task that begins there."""
    found: list[Line] = []
    for method, runs in enumerate(methods):
        own = [(one.columns, firsts) for one in runs if (firsts := boundaries(one))]
        if own:
            tasks = [(columns.task[firsts] + 1).astype(np.float64) for columns, firsts in own]
            found += line(method, band(tasks, [100 * _drops(*pair) for pair in own]))
    return tuple(found)


def _drops(columns: Columns, firsts: Sequence[int]) -> Floats:
    """How far the accuracy on earlier tasks fell after each boundary; at least 0."""
    ends = np.searchsorted(columns.task, columns.task[firsts], side="right").tolist()
    drops = []
    for first, end in zip(firsts, ends, strict=True):
        earlier = columns.accuracy_up_to(int(columns.task[first - 1]), slice(first - 1, end))
        drops.append(max(0.0, float(earlier[0] - earlier[1:].min())))
    return np.array(drops)
