"""PNG files that say by a checksum which numbers they were drawn from; a test compares it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

KEY = "Numbers"
"""Where a PNG says what it was drawn from."""


def checksum(numbers: Mapping[str, Any]) -> str:
    """A sum that changes if a number does."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def write_picture(path: Path, figure: Any, numbers: Mapping[str, Any]) -> None:
    """Write a figure of numbers, in 64 colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format="png")
    about = PngImagePlugin.PngInfo()
    about.add_text(KEY, checksum(numbers))
    with Image.open(drawn) as picture:
        small = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    path.parent.mkdir(exist_ok=True)
    small.save(path, optimize=True, pnginfo=about)
