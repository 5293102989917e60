"""A pickle of plain values and byte arrays, read without running anything that it says.

A pickle is a program. The official CIFAR files name three things of numpy to rebuild one array;
each is answered with a stand-in that can do this and no more, and any other name is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Mapping
from typing import IO

import numpy as np
import numpy.typing as npt

from ocar.datasets.unpickle_check import check_pickle


class _DType:
    """Stands for a ``numpy.dtype``; only its code is kept."""

    __slots__ = ("code",)

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment, which do not matter for bytes."""


class ByteArray:
    """Stands for a ``numpy.ndarray`` under construction; ``values`` appears with its state."""

    __slots__ = ("values",)

    def __init__(self, *_: object) -> None:
        self.values: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple(shape), _DType(code=b"u1"), False | 0, bytes(values)) if all(
                isinstance(size, int) and size >= 0 for size in shape
            ) and math.prod(shape) == len(values):
                self.values = np.frombuffer(values, dtype=np.uint8).reshape(shape)
            case _:
                raise pickle.UnpicklingError("an array in it is not one of unsigned bytes")


class _Name:
    """A permitted global: it can be called or passed on, not changed."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object] | None) -> None:
        self._make = make

    def __call__(self, *args: object) -> object:
        if self._make is None:
            raise pickle.UnpicklingError("it calls what it may only name")
        return self._make(*args)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it tries to change a function")


_ALLOWED: Mapping[tuple[str, str], Callable[..., object] | None] = {
    ("numpy.core.multiarray", "_reconstruct"): ByteArray,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _DType,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Knows plain values and arrays of bytes; everything else is an error."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        """The stand-in of a permitted global."""
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which is not allowed"
            )
        return _Name(_ALLOWED[module_name, global_name])


def load_plain(file: IO[bytes]) -> object:
    """What a pickle holds: plain values, byte strings, and :class:`ByteArray` for arrays.

    Raises:
        Exception: Anything, since a damaged pickle can fail in any way; it has run nothing.
    """
    whole = file.read()  # from a file, the reader would reserve whatever a length in it says
    check_pickle(whole)
    copy = io.BytesIO(whole)
    content = _ArrayUnpickler(copy, encoding="bytes").load()
    if copy.read(1):
        raise pickle.UnpicklingError("there is more after its end")
    return content
