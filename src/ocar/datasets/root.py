"""Where data sets are looked for."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_root() -> Path:
    """Where data sets are looked for: ``OCAR_DATA``, else a folder for the user's data."""
    given = os.environ.get("OCAR_DATA")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "ocar"
