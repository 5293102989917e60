"""Decode one image file to red, green and blue of one size.

Read are BMP, GIF, JPEG, PNG, PPM, TIFF and WebP:

- The image is turned as its EXIF orientation says; an EXIF block that cannot be read is ignored.
- 16-bit and 12-bit grey is scaled to 8 bits. 16-bit colours lose their lower 8 bits.
- Transparent pixels are laid over white.
- CMYK becomes red = (255 - c)(255 - k) / 255, and green and blue alike. Colour profiles (ICC) are
  not applied.
- Of an animation the first frame is read.

Refused by name is what has no right conversion: numbers with a sign, of 32 bits or with a point
(no value of them is known to be white), CIELAB, a TIFF of several pages; and what is too large.
"""

from __future__ import annotations

import io
from contextlib import suppress

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.Image import Transpose
from PIL.ImageFile import ImageFile

from ocar.errors import DataError

# Pillow decodes these itself; it hands others, such as EPS, to other programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

DECODER = "shorter side, bilinear, centre crop, 2"
"""Part of a cache's fingerprint: change it if the pixels change."""

MOST_PIXELS = 50_000_000
"""Of an image in its file, and after scaling: a small file may claim any size and shape."""

_LONGEST = 1000  # longer side by the shorter one: scaling needs memory for each row and column
_MOST_SCANNED = 10_000_000_000  # pixels times scans of a progressive JPEG, which take few bytes

_OPAQUE = {"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"}
_SEEN_THROUGH = {"LA", "La", "PA", "RGBA", "RGBa"}

_ORIENTATION = 0x0112
_TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
_PHOTOMETRIC, _BITS, _SAMPLE_FORMAT, _TILE = 262, 258, 339, (322, 323)  # tags of TIFF


def decode(data: bytes, size: int) -> npt.NDArray[np.uint8]:
    """The pixels of an image file, ``(3, size, size)``: red, green and blue.

    The shorter side is scaled to ``size`` (bilinear, with antialiasing) and the centre of the
    longer one is cut out; an image of that size already is not changed.

    Raises:
        Exception: Any, since a damaged image can fail in any way.
    """
    image = _upright(data, size)
    if image.size != (size, size):
        width, height = _scaled(*image.size, size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = image.crop((left, top, left + size, top + size))
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def _upright(data: bytes, size: int) -> Image.Image:
    """The image as it was taken; a function of its own, since its end frees the stored pixels."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as file:
        _check_size(file, data, size)
        image = _to_rgb(file)
        turn = _TURNS.get(_orientation(file))  # after loading: Pillow turns a TIFF itself
        return image if turn is None else image.transpose(turn)


def _scaled(width: int, height: int, size: int) -> tuple[int, int]:
    """Width and height with ``size`` for the shorter of them."""
    scale = size / min(width, height)
    return max(size, int(width * scale)), max(size, int(height * scale))


def _check_size(file: ImageFile, data: bytes, size: int) -> None:
    """Raise if the header promises too much memory or time, or several images."""
    width, height = file.size
    if not 0 < width * height <= MOST_PIXELS:
        raise DataError(f"it claims {width}×{height} pixels. Must be 1 to {MOST_PIXELS}")
    wide, high = _scaled(width, height, size)
    if wide * high > MOST_PIXELS or max(wide, high) > _LONGEST * size:
        raise DataError(
            f"its {width}×{height} pixels become {wide}×{high} if the shorter side is {size}. "
            f"Must be at most {MOST_PIXELS}, and {_LONGEST} times as long as wide"
        )
    if "progressive" in file.info and data.count(b"\xff\xda") * width * height > _MOST_SCANNED:
        raise DataError(f"it is a JPEG with too many scans of {width}×{height} pixels")
    if file.format == "TIFF":
        if getattr(file, "is_animated", False):
            raise DataError("it is a TIFF of several pages. Must be one")
        tile = [_first(file, tag, 1) for tag in _TILE]
        if tile[0] * tile[1] > MOST_PIXELS:
            raise DataError(f"its tiles are {tile[0]}×{tile[1]} pixels. Must be {MOST_PIXELS}")


def _to_rgb(file: ImageFile) -> Image.Image:
    mode, transparent = file.mode, "transparency" in file.info
    if mode.startswith("I"):
        return _to_8_bits(file).convert("RGB")
    if file.format == "TIFF" and _first(file, _SAMPLE_FORMAT, 1) == 2:
        raise DataError("its numbers have a sign, so that none is known to be black. Not read")
    if mode not in _OPAQUE | _SEEN_THROUGH:
        raise DataError(f"its pixels are {_NAMES.get(mode, mode)}. Not read")
    if not transparent and mode in _OPAQUE:
        return _as(file, "RGB")
    if transparent and mode in ("L", "RGB") and ";" in str(file.tile[0][3]):
        raise DataError("it has a transparent colour and not 8 bits a channel. Not read")
    image = _as(file.convert("LA") if mode == "La" else file, "RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


_NAMES = {"F": "floating-point numbers, of which none is known to be white", "LAB": "CIELAB"}


def _as(image: Image.Image, mode: str) -> Image.Image:
    """An image in a mode; Pillow would copy one that has it already."""
    image.load()
    return image if image.mode == mode else image.convert(mode)


def _to_8_bits(file: ImageFile) -> Image.Image:
    """Grey of 9 to 16 bits; Pillow itself would cut off all above 255."""
    tiff = file.format == "TIFF"
    if tiff and file.mode == "I":
        raise DataError("its numbers have a sign or 32 bits: none is known to be white. Not read")
    if "transparency" in file.info:
        raise DataError("it has a transparent colour and not 8 bits a channel. Not read")
    white = (1 << (_first(file, _BITS, 16) if tiff else 16)) - 1
    values = np.asarray(file).astype(np.uint32)
    values *= 255
    values += white // 2
    values //= white
    grey = values.astype(np.uint8)
    # Pillow inverts a TIFF whose zero is white only at 8 bits.
    return Image.fromarray(255 - grey if tiff and _first(file, _PHOTOMETRIC, 1) == 0 else grey)


def _first(file: ImageFile, tag: int, default: int) -> int:
    """The value of a TIFF's tag, or the first of several."""
    value = file.tag_v2.get(tag, default)  # type: ignore[attr-defined]
    return int(value[0] if isinstance(value, tuple) else value)


def _orientation(file: ImageFile) -> int:
    with suppress(Exception):  # a damaged block can raise anything
        return int(file.getexif().get(_ORIENTATION, 1))
    return 1
