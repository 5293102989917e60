"""Tables in Markdown, and what stands in their cells."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0) -> str:
    """A Markdown table.

    Args:
        head: Titles of the columns.
        rows: Their texts.
        numbers: How many columns after the first hold numbers.
    """
    aligned = ["---:" if 0 < place <= numbers else "---" for place in range(len(head))]
    return "".join(f"| {' | '.join(_cell(c) for c in row)} |\n" for row in [head, aligned, *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def plus_minus(mean: float, std: float | None, digits: int = 1) -> str:
    """Mean ± standard deviation, if there is one."""
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± sample standard deviation (ddof 1); one value has no deviation."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return plus_minus(statistics.fmean(values), std, digits)


def value(given: object) -> str:
    """A setting's value, short."""
    if given is None or given == ():
        return "none"
    if isinstance(given, tuple) and given == tuple(range(len(given))):
        return f"all {len(given)}"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, float):
        return f"{given:.6g}"
    return str(given)
