"""What happens at the boundaries between tasks, as lines of a figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocar_lab.report.figures import Line, Methods, Timed, bands, lines
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

    ``firsts`` are the first evaluations after each boundary. Changes are against the evaluation
    before it, entry ``before - 1``.
    """
    changes = []
    for first in firsts:
        rows = slice(first - before, first + after)
        earlier = columns.accuracy_up_to(int(columns.task[first - 1]), rows)
        changes.append(earlier - earlier[before - 1])
    return np.asarray(np.mean(changes, axis=0))


def gap_lines(methods: Methods) -> tuple[Line, ...]:
    """The stability gap: change in points around a boundary, of each method."""
    found = {}
    for method, runs in enumerate(methods):
        own = [(one.columns, firsts) for one in runs if (firsts := boundaries(one))]
        if own:
            windows = [window(*pair) for pair in own]
            before, after = min(w[0] for w in windows), min(w[1] for w in windows)
            offsets = np.arange(1 - before, after + 1, dtype=np.float64)
            changes = [100 * around(*pair, before=before, after=after) for pair in own]
            found[method] = band([offsets] * len(changes), changes)
    return lines(found)


def drop_lines(methods: Methods) -> tuple[Line, ...]:
    """The drop in points at each boundary, over the number of the task that begins there."""
    return lines(bands(methods, _drops))


def _drops(own: Timed) -> tuple[Floats, Floats] | None:
    """How far the accuracy on earlier tasks fell after each boundary, in points; at least 0."""
    columns, firsts = own.columns, boundaries(own)
    if not firsts:
        return None
    begun = columns.task[firsts]
    drops = []
    for first, end in zip(firsts, np.searchsorted(columns.task, begun, side="right"), strict=True):
        earlier = columns.accuracy_up_to(int(columns.task[first - 1]), slice(first - 1, end))
        drops.append(max(0.0, float(earlier[0] - earlier[1:].min())))
    return (begun + 1).astype(np.float64), 100 * np.array(drops)
