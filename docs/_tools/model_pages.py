"""The models that were tried, and what becomes of each."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from tables import table

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "tests" / "learners"


def model_zoo_table() -> str:
    """One row a model of the zoo: its settings, and what ER and OCAR do with it."""
    if str(ZOO) not in sys.path:
        sys.path.append(str(ZOO))
    zoo: Any = importlib.import_module("model_zoo")
    rows, group = [], ""
    for name, entry in zoo.ZOO.items():
        kind = "" if entry.group == group else entry.group
        both = "the same" if entry.ocar == entry.er else _outcome(entry.ocar)
        rows.append([kind, name, _settings(entry.settings), _outcome(entry.er), both])
        group = entry.group
    learned = [sum(getattr(e, m) == "learns" for e in zoo.ZOO.values()) for m in ("er", "ocar")]
    said = f"Of {len(zoo.ZOO)} models ER learns {learned[0]} and OCAR {learned[1]}."
    return f"{table(['kind', 'model', 'settings', 'ER', 'OCAR'], rows)}\n{said}\n"


def _settings(settings: Any) -> str:
    return ", ".join(f"`{name}={value!r}`" for name, value in settings.items())


def _outcome(said: str) -> str:
    return said if said == "learns" else f"refused: “{said} …”"


def model_shares_table() -> str:
    """One row an architecture: its numbers, and the share of them that has curvature."""
    stored = json.loads((ROOT / "results" / "model-zoo" / "shares.json").read_text())
    rows = [
        [
            f"`{row['name']}`",
            f"{row['numbers'] / 1e6:.1f}",
            f"{100 * row['share']:.1f}",
            row["library"],
            ", ".join(row["without"]),
        ]
        for row in stored["models"]
    ]
    head = ["architecture", "million numbers", "share in %", "library", "no curvature"]
    versions = ", ".join(f"{n} {stored['versions'][n]}" for n in ("torch", "timm", "transformers"))
    return f"{table(head, rows, numbers=2)}\nMade with {versions}.\n"
