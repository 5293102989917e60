"""Read a pickle of plain values and byte arrays without running anything.

A pickle is a program, so Python's reader cannot be trusted with a downloaded file. The official
CIFAR files name three functions of numpy to rebuild one array. Each gets a stand-in that can do
only this, and any other name is refused.

The reader also allocates what a pickle says: a string of any length, a memo of any size. And it
hashes the keys of a dictionary, which for nested tuples can take exponential time or overflow the
stack. A pickle is a straight line of instructions, so one pass over them finds all of this before.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt


class _DType:
    """Stands for a ``numpy.dtype``; only its code is kept."""

    __slots__ = ("code",)

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which bytes do not have."""


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
    def find_class(self, module_name: str, global_name: str, /) -> object:
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which is not allowed"
            )
        return _Name(_ALLOWED[module_name, global_name])


_MOST_TUPLES = 1000  # the official files make six
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"}
_PUTS, _GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_TEXTS = {
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_CHECKED = {*_TUPLES, *_PUTS, *_GETS, "FRAME", "DUP", "MEMOIZE"}


def check_pickle(data: bytes) -> None:
    """Raise if a whole pickle could take more memory, time or stack than its size allows."""
    tuples, last = 0, ""
    texts: set[int] | None = set()  # memo entries that are strings; None if not known
    value: Any
    try:
        for instruction, value, _ in pickletools.genops(data):
            name, before, last = instruction.name, last, instruction.name
            if name not in _CHECKED:
                continue
            if name in _PUTS:
                if not 0 <= value <= len(data):
                    raise pickle.UnpicklingError(f"it puts a value in place {value} of its memo")
                if texts is not None:
                    (texts.add if before in _TEXTS else texts.discard)(value)
            elif name in _GETS and (texts is None or value not in texts):
                raise pickle.UnpicklingError("it uses a value twice that is no text")
            elif name in _TUPLES:
                tuples += 1
                if tuples > _MOST_TUPLES:
                    raise pickle.UnpicklingError(f"it has more than {_MOST_TUPLES} tuples")
            elif name == "FRAME" and value > len(data):
                raise pickle.UnpicklingError("a part of it is longer than the file")
            elif name == "DUP":
                raise pickle.UnpicklingError("it uses a value twice")
            elif name == "MEMOIZE":
                texts = None
    except ValueError as error:
        raise pickle.UnpicklingError(
            f"a text in it is longer than the file or damaged ({error})"
        ) from error


def load_plain(file: IO[bytes]) -> object:
    """The content of a pickle: plain values, byte strings, and :class:`ByteArray` for arrays.

    Raises:
        Exception: Any, since a damaged pickle can fail in any way; it has run nothing.
    """
    data = file.read()  # from a file, the reader would allocate any length that it says
    check_pickle(data)
    copy = io.BytesIO(data)
    content = _ArrayUnpickler(copy, encoding="bytes").load()
    if copy.read(1):
        raise pickle.UnpicklingError("there is more after its end")
    return content
