"""Kinds of pixels, orientations and sizes of image files, against numpy."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocar.datasets import decoding
from ocar.datasets.decoding import MOST_PIXELS, decode
from ocar.errors import DataError

SIDE = 8
RNG = np.random.default_rng(0)
RAMP = np.linspace(0, 65535, SIDE * SIDE).astype(np.uint16).reshape(SIDE, SIDE)
COLOURS = RNG.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
ALPHA = RNG.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)


def encode(image: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    made = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    made.save(file, kind, **options)
    return file.getvalue()


def tiff(
    values: np.ndarray | bytes,
    *,
    order: str = "<",
    bits: int = 8,
    photometric: int = 1,
    sample: int = 1,
    pages: int = 1,
    tags: Mapping[int, int] | None = None,
) -> bytes:
    """A TIFF without compression of one channel and ``SIDE`` × ``SIDE`` pixels."""
    data = values if isinstance(values, bytes) else values.astype(f"{order}{values.dtype.str[1:]}")
    data = bytes(data)
    known = {256: SIDE, 257: SIDE, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: SIDE}
    entries = sorted((known | {279: len(data), 339: sample} | dict(tags or {})).items())
    body = struct.pack(f"{order}H", len(entries)) + b"".join(
        struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in entries
    )
    at = 8 + len(data)
    folders = b""
    for page in range(pages):
        after = at + (page + 1) * (len(body) + 4) if page + 1 < pages else 0
        folders += body + struct.pack(f"{order}I", after)
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(f"{order}I", at) + data + folders


def grey(levels: np.ndarray) -> np.ndarray:
    return np.broadcast_to(levels, (3, *levels.shape))


def rounded(values: np.ndarray, white: int) -> np.ndarray:
    return grey(np.round(values.astype(np.float64) * 255 / white))


def check(data: bytes, expected: np.ndarray, *, within: float = 0) -> None:
    decoded = decode(data, SIDE)
    assert decoded.shape == (3, SIDE, SIDE)
    assert np.abs(decoded.astype(float) - expected).max() <= within


# --- deep, signed and floating-point numbers ---


def packed_12(values: np.ndarray) -> bytes:
    """12 bits each, two numbers in three bytes."""
    text = "".join(f"{int(value):03x}" for value in values.flatten())
    return bytes.fromhex(text)


@pytest.mark.parametrize(
    ("data", "white"),
    [
        (encode(RAMP), 65535),
        (encode(RAMP, "TIFF"), 65535),
        (encode(RAMP, "TIFF", compression="tiff_deflate"), 65535),
        (tiff(RAMP, bits=16), 65535),
        (tiff(RAMP, bits=16, order=">"), 65535),
        (b"P5 8 8 65535\n" + RAMP.astype(">u2").tobytes(), 65535),
        (b"P2 8 8 65535\n" + b" ".join(b"%d" % v for v in RAMP.flatten()), 65535),
    ],
    ids=["PNG", "TIFF", "deflated TIFF", "plain TIFF", "big-endian TIFF", "PGM", "plain PGM"],
)
def test_deep_grey_is_scaled(data: bytes, white: int) -> None:
    check(data, rounded(RAMP, white))


def test_12_bits_and_a_white_zero() -> None:
    check(tiff(packed_12(RAMP // 16), bits=12), rounded(RAMP // 16, 4095))
    check(tiff(RAMP, bits=16, photometric=0), 255 - rounded(RAMP, 65535))
    levels = (RAMP // 256).astype(np.uint8)
    check(tiff(levels, photometric=0), 255 - grey(levels))


def test_16_bit_colours_keep_their_upper_bits() -> None:
    deep = RNG.integers(0, 65536, (SIDE, SIDE, 3), dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    header = struct.pack(">2I5B", SIDE, SIDE, 16, 2, 0, 0, 0)
    data = png(header, rows)
    check(data, (deep / 257).transpose(2, 0, 1), within=1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tiff(RAMP.astype(np.int16), bits=16, sample=2), "have a sign or 32 bits"),
        (tiff((RAMP // 256).astype(np.int8), sample=2), "have a sign"),
        (tiff(RAMP.astype(np.uint32), bits=32), "have a sign or 32 bits"),
        (tiff(RAMP.astype(np.float32), bits=32, sample=3), "floating-point numbers"),
        (encode(Image.fromarray(RAMP.astype(np.float32)), "TIFF"), "floating-point numbers"),
        (b"Pf 8 8 -1.0\n" + RAMP.astype("<f4").tobytes(), "floating-point numbers"),
        (encode(Image.new("LAB", (SIDE, SIDE)), "TIFF"), "CIELAB"),
        (tiff((RAMP // 256).astype(np.uint8), pages=2), "TIFF of several pages"),
        (encode(RAMP, transparency=7), "a transparent colour and not 8 bits"),
    ],
    ids=["int16", "int8", "uint32", "float32", "float TIFF", "PFM", "LAB", "pages", "key"],
)
def test_what_has_no_right_conversion_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode(data, SIDE)


# --- colours and transparency ---


def over_white(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    part = alpha[..., None].astype(np.float64) / 255
    return (colours * part + 255 * (1 - part)).transpose(2, 0, 1)


def test_transparency_is_laid_over_white() -> None:
    rgba = np.dstack([COLOURS, ALPHA])
    for kind, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True})):
        check(encode(rgba, kind, **options), over_white(COLOURS, ALPHA), within=1)
    levels = COLOURS[..., 0]
    both = Image.fromarray(np.dstack([levels, ALPHA]), "LA")
    expected = over_white(np.dstack([levels] * 3), ALPHA)
    check(encode(both), expected, within=1)
    check(encode(both, "TIFF"), expected, within=1)


def test_a_palette_with_transparency() -> None:
    palette = RNG.integers(0, 256, (256, 3), dtype=np.uint8)
    alphas = RNG.integers(0, 256, 256, dtype=np.uint8)
    places = RNG.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
    image = Image.fromarray(places, "P")
    image.putpalette(palette.tobytes())
    check(encode(image), palette[places].transpose(2, 0, 1))
    seen_through = encode(image, transparency=alphas.tobytes())
    check(seen_through, over_white(palette[places], alphas[places]), within=1)
    hidden = np.where(places == 9, 0, 255).astype(np.uint8)
    for kind in ("PNG", "GIF"):
        expected = over_white(palette[places], hidden)
        check(encode(image, kind, transparency=9), expected)


def test_a_transparent_colour_of_a_png() -> None:
    levels = COLOURS[..., 0]
    hidden = np.where(levels == levels[0, 0], 0, 255).astype(np.uint8)
    expected = over_white(np.dstack([levels] * 3), hidden)
    check(encode(levels, transparency=int(levels[0, 0])), expected)


def test_cmyk_and_one_bit() -> None:
    cmyk = RNG.integers(0, 256, (SIDE, SIDE, 4), dtype=np.uint8)
    c, k = 255.0 - cmyk[..., :3], 255.0 - cmyk[..., 3:]
    check(encode(Image.fromarray(cmyk, "CMYK"), "TIFF"), (c * k / 255).transpose(2, 0, 1), within=1)
    ink = np.empty((SIDE, SIDE, 4), dtype=np.uint8)
    ink[:] = (200, 30, 90, 60)
    expected = (255.0 - ink[..., :3]) * (255.0 - ink[..., 3:]) / 255
    data = encode(Image.fromarray(ink, "CMYK"), "JPEG", quality=100)
    check(data, expected.transpose(2, 0, 1), within=3)
    bits = COLOURS[..., 0] > 127
    for kind in ("PNG", "TIFF", "BMP", "PPM"):
        check(encode(Image.fromarray(bits), kind), grey(255 * bits))


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (SIDE, SIDE), (level, 0, 0)) for level in (50, 250)]
    for kind, options in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True})):
        more = {"save_all": True, "append_images": frames[1:], **options}
        check(encode(frames[0], kind, **more), np.array([50, 0, 0]).reshape(3, 1, 1))


# --- orientation ---

UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
    8: lambda x: np.rot90(x, 1),
}
"""From the stored pixels to the picture, by the orientation in EXIF."""


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_a_picture_is_turned_as_its_exif_says(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    expected = UPRIGHT[orientation](COLOURS).transpose(2, 0, 1)
    for kind, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True})):
        check(encode(COLOURS, kind, exif=exif, **options), expected)
    check(encode(COLOURS, "TIFF", exif=exif, compression="tiff_lzw"), expected)
    quarters = np.zeros((2 * SIDE, 4 * SIDE, 3), dtype=np.uint8)
    quarters[:SIDE, : 2 * SIDE, 0] = 255
    quarters[SIDE:, 2 * SIDE :, 1] = 255
    photograph = encode(quarters, "JPEG", quality=100, subsampling=0, exif=exif)
    plain = encode(np.ascontiguousarray(UPRIGHT[orientation](quarters)))
    difference = decode(photograph, 6).astype(int) - decode(plain, 6)
    assert np.abs(difference).max() <= 8  # JPEG is lossy


def test_a_damaged_exif_block_is_ignored() -> None:
    data = encode(COLOURS, "WEBP", lossless=True, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01")
    check(data, COLOURS.transpose(2, 0, 1))


# --- sizes that a header claims ---


def png(header: bytes, rows: bytes) -> bytes:
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    parts = [
        struct.pack(">I", len(content)) + part + struct.pack(">I", zlib.crc32(part))
        for part, content in ((name + content, content) for name, content in chunks)
    ]
    return b"".join([b"\x89PNG\r\n\x1a\n", *parts])


@pytest.mark.parametrize("interlaced", [0, 1])
@pytest.mark.parametrize(("width", "height"), [(1_000_000, 1), (1, 1_000_000), (49_999_999, 1)])
def test_a_line_of_pixels_is_not_scaled_to_gigabytes(
    width: int, height: int, interlaced: int
) -> None:
    header = struct.pack(">2I5B", width, height, 1, 0, 0, 0, interlaced)
    data = png(header, b"\0" * 1000)
    with pytest.raises(DataError, match=f"its {width}×{height} pixels become"):
        decode(data, 64)
    with pytest.raises(DataError, match="1000 times as long as wide"):
        decode(data, 1)


def test_a_long_picture_within_the_bound_is_read() -> None:
    strip = np.tile(np.arange(1000, dtype=np.uint8)[None, :, None], (4, 1, 3))
    middle = decode(encode(strip), 4)
    np.testing.assert_array_equal(middle[0, 0], strip[0, 498:502, 0])


GIF = encode(COLOURS, "GIF")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            GIF[:6] + struct.pack("<HH", 9000, 9000) + GIF[10:],
            "it claims 9000×9000 pixels",
        ),
        (tiff(bytes(64), tags={256: 9000, 257: 9000}), "it claims 9000×9000 pixels"),
        (tiff(bytes(64), tags={322: 60_000, 323: 60_000}), "its tiles are 60000×60000"),
        (png(struct.pack(">2I5B", 8000, 8000, 8, 6, 0, 0, 1), b""), "it claims 8000×8000 pixels"),
        (b"P6 9000 9000 255\n", "it claims 9000×9000 pixels"),
    ],
    ids=["GIF", "TIFF", "tiles of a TIFF", "interlaced PNG", "PPM"],
)
def test_claims_are_refused_before_anything_is_decoded(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode(data, 4)


def test_scans_of_a_jpeg_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scan of a few bytes goes over all pixels once more."""
    photograph = encode(COLOURS, "JPEG", progressive=True)
    scans = photograph.count(b"\xff\xda")
    assert scans > 1
    decode(photograph, SIDE)
    monkeypatch.setattr(decoding, "_MOST_SCANNED", scans * SIDE * SIDE - 1)
    with pytest.raises(DataError, match="too many scans"):
        decode(photograph, SIDE)
    decode(encode(COLOURS, "JPEG"), SIDE)
    assert MOST_PIXELS * 100 < 10_000_000_000  # an ordinary photograph has about ten
