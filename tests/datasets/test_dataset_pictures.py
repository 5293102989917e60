"""Decoding image files."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from dataset_files import picture, write_folder
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ocar.datasets.archives import Folder
from ocar.datasets.decoding import decode
from ocar.datasets.pictures import Picture, decode_all, is_picture
from ocar.errors import ConfigError, DataError


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_pixels_of_the_right_size_are_left_alone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    for kind in ("PNG", "BMP", "PPM", "TIFF"):
        decoded = decode(encode(Image.fromarray(pixels), kind), 9)
        np.testing.assert_array_equal(decoded, pixels.transpose(2, 0, 1))
        assert decoded.flags.c_contiguous
    lossless = encode(Image.fromarray(pixels), "WEBP", lossless=True)
    np.testing.assert_array_equal(decode(lossless, 9), pixels.transpose(2, 0, 1))
    for kind in ("JPEG", "WEBP", "GIF"):
        assert decode(encode(Image.fromarray(pixels), kind), 9).shape == (3, 9, 9)


@given(
    width=st.integers(1, 60),
    height=st.integers(1, 60),
    size=st.integers(1, 40),
)
def test_the_shorter_side_is_scaled_and_the_middle_kept(width: int, height: int, size: int) -> None:
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[..., 0], pixels[..., 1] = 4 * rows, 4 * columns
    decoded = decode(encode(Image.fromarray(pixels)), size).astype(float) / 4
    assert decoded.shape == (3, size, size)
    scale = min(width, height) / size
    # Away from the borders a linear picture stays linear: where does the middle come from?
    if width >= 3 * scale + 2 and height >= 3 * scale + 2 and size >= 3:
        middle = decoded[:, size // 2, size // 2]
        offset = (size // 2 + 0.5 - size / 2) * scale
        slack = scale + 1  # half a pixel of the result, and the rounding of the crop
        assert middle[0] == pytest.approx((height - 1) / 2 + offset, abs=slack)
        assert middle[1] == pytest.approx((width - 1) / 2 + offset, abs=slack)
        slope = decoded[0, size // 2 + 1, size // 2] - decoded[0, size // 2 - 1, size // 2]
        assert slope == pytest.approx(2 * scale, abs=scale / 2 + 1)


def test_all_kinds_of_pixels_become_colours() -> None:
    grey = Image.new("L", (5, 5), 77)
    assert (decode(encode(grey), 5) == 77).all()
    palette = Image.new("P", (5, 5), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    expected = np.broadcast_to(np.array([10, 20, 30]).reshape(3, 1, 1), (3, 5, 5))
    np.testing.assert_array_equal(decode(encode(palette), 5), expected)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bomb(side: int) -> bytes:
    """A file of a hundred bytes that claims to be ``side`` × ``side`` pixels."""
    header = struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 100)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is none of BMP, GIF, JPEG"),
        (b"no image at all", "it is none of BMP, GIF, JPEG"),
        (picture(1, size=(64, 64), kind="JPEG")[:-200], "[Tt]runcated"),
        (picture(1)[:40], "as an image"),
        (png_bomb(9_000), r"it claims 9000×9000 pixels"),
        (png_bomb(50_000), "as an image"),
        (EPS, "it is none of BMP, GIF, JPEG"),
    ],
    ids=["empty", "text", "cut JPEG", "cut PNG", "bomb", "large bomb", "EPS"],
)
def test_unreadable_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    write_folder(tmp_path, {"a.png": picture(1), "bad.png": content, "c.png": picture(2)})
    with Folder(tmp_path) as tree:
        pictures = [Picture(tree, name, stamp, 0) for name, stamp in tree.files().items()]
        with pytest.raises(DataError, match=message) as caught:
            list(decode_all(pictures, 4))
    assert f"Cannot read {tmp_path / 'bad.png'} as an image" in str(caught.value)


def test_a_jpeg_cut_anywhere_is_refused_or_whole(tmp_path: Path) -> None:
    whole = picture(100, size=(32, 32), kind="JPEG")
    pixels = decode(whole, 32)
    for length in range(0, len(whole) - 1, 7):
        try:
            decoded = decode(whole[:length], 32)
        except OSError:
            continue
        np.testing.assert_array_equal(decoded, pixels)


def test_order_and_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocar.datasets.pictures._CHUNK", 7)
    monkeypatch.setattr("ocar.datasets.pictures.torch.get_num_threads", lambda: 4)
    write_folder(tmp_path, {f"{level:03}.png": picture(level) for level in range(40)})
    with Folder(tmp_path) as tree:
        pictures = [Picture(tree, name, stamp, 0) for name, stamp in tree.files().items()]
        levels = [int(pixels[0, 0, 0]) for pixels in decode_all(pictures, 3)]
        with pytest.raises(ConfigError, match="Invalid size=0"):
            next(decode_all(pictures, 0))
    assert levels == list(range(40))


def test_images_are_known_by_name() -> None:
    assert all(map(is_picture, ("a.JPEG", "a/b.png", "x.webp", "y.Tif")))
    assert not any(map(is_picture, ("a.txt", "png", "a.png.gz", "a.eps", "Thumbs.db")))
