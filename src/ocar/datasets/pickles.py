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
import re
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO

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
    """Knows plain values and arrays of bytes; everything else is an error."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        """The stand-in of a permitted global."""
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which is not allowed"
            )
        return _Name(_ALLOWED[module_name, global_name])


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


_MOST_TUPLES = 1000  # the official files make six

# Instructions by their code, and their argument: a number of bytes, or a length and a string.
_KNOWN = {op.code.encode("latin-1"): op.arg.n if op.arg else 0 for op in pickletools.opcodes}
_TEXTS = {b"U": "<B", b"T": "<i", b"X": "<I", b"C": "<B", b"B": "<I"}
_TEXTS |= {b"\x8c": "<B", b"\x8d": "<Q", b"\x8e": "<Q", b"\x96": "<Q"}
_COUNTED = _TEXTS | {b"\x8a": "<B", b"\x8b": "<i"}  # and long integers
_INDEXED = {b"q": "<B", b"r": "<I", b"h": "<B", b"j": "<I"}
_PUTS, _GETS = (b"q", b"r", b"p"), (b"h", b"j", b"g")
_LINES = {code: 1 for code, n in _KNOWN.items() if n == pickletools.UP_TO_NEWLINE}
_LINES |= {b"c": 2, b"i": 2}
_TUPLES = (b"t", b"\x85", b"\x86", b"\x87", b"\x91")  # and frozen sets
_FRAME, _TWICE, _MEMOIZE, _STOP = b"\x95", b"2", b"\x94", b"."
_CHECKED = {*_COUNTED, *_INDEXED, *_LINES, *_TUPLES, _FRAME, _TWICE, _MEMOIZE, _STOP}

# Most of a file is small numbers: the pass skips instructions without a check in one step.
_REST = {code: n for code, n in _KNOWN.items() if code not in _CHECKED}
_PLAIN = re.compile(
    b"(?:%b)*+"
    % b"|".join(
        b"[%b].{%d}" % (b"".join(re.escape(code) for code, n in _REST.items() if n == size), size)
        for size in sorted(set(_REST.values()))
    ),
    re.DOTALL,
)


def check_pickle(data: bytes) -> None:
    """Raise if a pickle could take more memory, time or stack than its size allows.

    Args:
        data: The whole pickle. Invalid instructions are left to the reader, which stops there.
    """
    with suppress(struct.error):  # it ends within a number, where the reader stops too
        _Pass(data).run()


class _Pass:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.tuples = 0
        self.texts: set[int] | None = set()  # memo entries that are strings; None if not known

    def run(self) -> None:
        data, size = self.data, len(self.data)
        last = b""
        while True:
            start = self.place
            match = _PLAIN.match(data, start)
            assert match is not None, "it may match nothing"
            self.place = match.end() + 1
            if match.end() > start:
                last = b""
            code = data[self.place - 1 : self.place]
            if not code or code == _STOP or code not in _KNOWN:
                return
            if code in _COUNTED:
                length = self._number(_COUNTED[code])
                self.place += length
                if length < 0 or self.place > size:
                    raise pickle.UnpicklingError("a text in it is longer than the file")
            elif code == _FRAME:
                if self._number("<Q") > size:
                    raise pickle.UnpicklingError("a part of it is longer than the file")
            elif code in _INDEXED:
                self._memo(code, self._number(_INDEXED[code]), last)
            elif code in _LINES:
                line = self._line()
                if code in (*_PUTS, *_GETS):
                    self._memo(code, int(line) if line.isdigit() else -1, last)
                elif _LINES[code] == 2:
                    self._line()
            elif code == _TWICE:
                raise pickle.UnpicklingError("it uses a value twice")
            elif code == _MEMOIZE:
                self.texts = None
            else:
                self.tuples += 1
                if self.tuples > _MOST_TUPLES:
                    raise pickle.UnpicklingError(f"it has more than {_MOST_TUPLES} tuples")
            last = code

    def _number(self, kind: str) -> int:
        number: int = struct.unpack_from(kind, self.data, self.place)[0]
        self.place += struct.calcsize(kind)
        return number

    def _line(self) -> bytes:
        end = self.data.find(b"\n", self.place)
        end = len(self.data) if end < 0 else end
        line, self.place = self.data[self.place : end], end + 1
        return line

    def _memo(self, code: bytes, index: int, last: bytes) -> None:
        """Check a value that is put into the memo, or taken from it to be used again."""
        if code in _GETS:
            if self.texts is None or index not in self.texts:
                raise pickle.UnpicklingError("it uses a value twice that is no text")
        elif not 0 <= index <= len(self.data):
            raise pickle.UnpicklingError(f"it puts a value in place {index} of its memo")
        elif self.texts is not None:
            (self.texts.add if last in (*_TEXTS, b"S", b"V") else self.texts.discard)(index)
