"""The tables of the gallery's frozen backbone."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from result_pages import RESULTS


def backbone_tables() -> str:
    """Accuracies and times, from ``results/gallery/backbone.json``."""
    folder = str(RESULTS.parent / "experiments" / "gallery")
    if folder not in sys.path:
        sys.path.append(folder)
    made: Any = importlib.import_module("backbone_table")
    text: str = made.tables(json.loads((RESULTS / "gallery" / "backbone.json").read_text()))
    return text
