"""The IDX format of MNIST and its relatives, gzipped or not.

A file is two zero bytes, a type code, the number of dimensions, each dimension as a 32-bit
big-endian number, then the values. Only unsigned bytes (code 8) are in use.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from ocar.errors import DataError

_GZIP = b"\x1f\x8b"
_UNSIGNED_BYTE = 8
_PIECE = 1 << 20
_MOST_VALUES = 1 << 30  # the largest known set in this format, EMNIST, has 0.55e9
_DEFLATE = 1032  # deflate cannot make a file smaller than this times


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Values of an IDX file, in the shape that its header gives.

    Args:
        path: The file; whether it is gzipped is seen from its first bytes, not its name.

    Raises:
        DataError: The file cannot be read, is no IDX file of unsigned bytes, or holds more or
            fewer values than its header says.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == _GZIP
        most = path.stat().st_size * (_DEFLATE if zipped else 1)
        with gzip.open(path, "rb") if zipped else path.open("rb") as file:
            return _parse(file, path, most=min(most, _MOST_VALUES))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"Cannot read {path}: {error}.") from error


def _parse(file: IO[bytes] | gzip.GzipFile, path: Path, *, most: int) -> npt.NDArray[np.uint8]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != bytes((0, 0, _UNSIGNED_BYTE)) or magic[3] == 0:
        raise DataError(
            f"{path} is no IDX file of unsigned bytes: it begins with {magic.hex(' ')!r}, "
            "must be 00 00 08 and the number of dimensions."
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path} ends within its header: it is truncated.")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    expected = math.prod(shape)
    if expected > most:
        raise DataError(
            f"{path} should hold {expected} values by its header {shape}, "
            f"which a file of its size cannot: at most {most}."
        )
    values = bytearray()  # in pieces, so that a wrong header does not cost its memory
    while len(values) <= expected and (piece := file.read(_PIECE)):
        values += piece
    if len(values) != expected:
        given = "more" if len(values) > expected else f"{len(values)}"
        raise DataError(f"{path} should hold {expected} values by its header {shape}, has {given}.")
    try:
        return np.frombuffer(values, dtype=np.uint8).reshape(shape)
    except ValueError as error:  # too many dimensions, or an empty array that is too large
        raise DataError(f"{path} has the impossible shape {shape}: {error}.") from error
