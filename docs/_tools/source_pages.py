"""What to read in the source: the files of the method, and the operations of ``ocar.accel``."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from docstrings import to_markdown
from tables import table

from ocar.accel import OPERATIONS

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "src" / "ocar"

READ: dict[str, tuple[str, ...]] = {
    "the steps": ("learner.py", "steps.py", "methods/context.py"),
    "the loss": ("methods/objective.py", "methods/settings.py", "methods/er.py"),
    "the gradient": ("methods/transform.py", "methods/ocar.py"),
    "the curvature": (
        "curvature/specification.py",
        "curvature/curvature.py",
        "curvature/layerwise.py",
        "curvature/layers.py",
        "curvature/blocks.py",
        "curvature/fisher.py",
        "curvature/kfac.py",
    ),
    "the memory": ("memory/memory.py", "memory/reservoir.py"),
    "the guard": ("guard/guard.py", "guard/settings.py"),
}
"""The files of the library behind each part of the method."""


def method_files() -> str:
    """The files that make the method: a row a file, and how many lines they have in all."""
    rows, total = [], 0
    for part, names in READ.items():
        for place, name in enumerate(names):
            lines = len((LIBRARY / name).read_text(encoding="utf-8").splitlines())
            total += lines
            link = f"[{name}](../src/ocar/{name})"
            rows.append(["" if place else part, link, str(lines), _about(LIBRARY / name)])
    head = ["to change", "read", "lines", "what it is"]
    return table(head, rows) + f"\n{total:,} lines in all, docstrings included.\n"


def operations_table() -> str:
    """Every operation of ``ocar.accel``: what it does, its implementations, and its file."""
    rows = []
    for name, operation in sorted(OPERATIONS.items()):
        plain = operation.implementations["plain"]
        file = Path(inspect.getfile(inspect.unwrap(plain))).name
        about = _first_line(plain.__doc__)
        names = ", ".join(operation.implementations)
        rows.append([f"`{name}`", about, names, f"`accel/{file}`"])
    return table(["operation", "what it does", "implementations", "defined in"], rows)


def _about(path: Path) -> str:
    return _first_line(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))


def _first_line(docstring: str | None) -> str:
    """The first line of a docstring, as Markdown."""
    return to_markdown((docstring or "").partition("\n")[0].rstrip(".")).strip()
