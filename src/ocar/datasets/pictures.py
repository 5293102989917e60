"""Image files: from their bytes to pixels of one size."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError

from ocar.datasets.tree import Tree
from ocar.errors import ConfigError, DataError

# Only what decodes by itself: Pillow hands some others, such as EPS, to other programs.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
"""How the name of an image file ends, in lower case."""

_MOST_PIXELS = 50_000_000  # a small file may claim to be a large image
_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Picture:
    """One image file and what it shows."""

    tree: Tree
    """Where the file is."""

    name: str
    """Its name there."""

    stamp: str
    """Changes if the file does."""

    label: int
    """Its class."""

    domain: int = 0
    """Its domain."""


def is_picture(name: str) -> bool:
    """Whether a file is an image by its name."""
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 a name, not a path


def decode(data: bytes, size: int) -> npt.NDArray[np.uint8]:
    """Pixels of an image file.

    The shorter side is scaled to ``size`` (bilinear, with antialiasing) and the middle of the
    longer one is cut out; an image of that size already is left as it is.

    Returns:
        ``(3, size, size)``, red, green and blue.

    Raises:
        Exception: Anything, since a damaged image can fail in any way.
    """
    with Image.open(io.BytesIO(data), formats=_FORMATS) as file:
        width, height = file.size
        if width * height > _MOST_PIXELS:
            raise DataError(f"it claims {width}×{height} pixels, more than {_MOST_PIXELS}")
        # Without the step between, Pillow warns of what becomes of a palette's transparency.
        image = (file.convert("RGBA") if "transparency" in file.info else file).convert("RGB")
    if (width, height) != (size, size):
        scale = size / min(width, height)
        width, height = max(size, int(width * scale)), max(size, int(height * scale))
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = image.crop((left, top, left + size, top + size))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def decode_all(pictures: Sequence[Picture], size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Pixels ``(3, size, size)`` of each picture in turn, decoded by several threads.

    Raises:
        DataError: A file cannot be read or is no image; it is named.
    """
    if size < 1:
        raise ConfigError(f"Invalid {size=}. Must be at least 1.")
    # As many threads as torch may use, so that one setting limits both.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for start in range(0, len(pictures), _CHUNK):
            chunk = pictures[start : start + _CHUNK]
            yield from pool.map(_decode_one, chunk, itertools.repeat(size))


def _decode_one(picture: Picture, size: int) -> npt.NDArray[np.uint8]:
    data = picture.tree.read(picture.name)
    try:
        return decode(data, size)
    except Exception as error:  # a damaged image can raise anything
        where = picture.tree.locate(picture.name)
        reason: object = error
        if isinstance(error, UnidentifiedImageError):  # which names our buffer
            reason = f"it is none of {', '.join(_FORMATS)}"
        raise DataError(f"Cannot read {where} as an image: {reason}.") from error
