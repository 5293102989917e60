"""What a pickle would make Python's reader do, seen before it is read.

The reader reserves what a pickle says: a text of so many bytes, a place in its memo with so many
before it. And it hashes the keys of a dictionary, which for tuples in tuples can take time that
doubles with each, or more of the stack than there is. A pickle is a straight line of
instructions, so one pass over them finds all of this.
"""

from __future__ import annotations

import pickle
import pickletools
import re
import struct

_MOST_TUPLES = 1000  # the official files make six

# Instructions by their code, and what follows a code: so many bytes, or a length and a text.
_KNOWN = {op.code.encode("latin-1"): op.arg.n if op.arg else 0 for op in pickletools.opcodes}
_TEXTS = {b"U": "<B", b"T": "<i", b"X": "<I", b"C": "<B", b"B": "<I"}
_TEXTS |= {b"\x8c": "<B", b"\x8d": "<Q", b"\x8e": "<Q", b"\x96": "<Q"}
_COUNTED = _TEXTS | {b"\x8a": "<B", b"\x8b": "<i"}  # and long whole numbers
_INDEXED = {b"q": "<B", b"r": "<I", b"h": "<B", b"j": "<I"}
_PUTS, _GETS = (b"q", b"r", b"p"), (b"h", b"j", b"g")
_LINES = {code: 1 for code, n in _KNOWN.items() if n == pickletools.UP_TO_NEWLINE}
_LINES |= {b"c": 2, b"i": 2}
_TUPLES = (b"t", b"\x85", b"\x86", b"\x87", b"\x91")  # and frozen sets
_FRAME, _TWICE, _MEMOIZE, _STOP = b"\x95", b"2", b"\x94", b"."
_LOOKED_AT = {*_COUNTED, *_INDEXED, *_LINES, *_TUPLES, _FRAME, _TWICE, _MEMOIZE, _STOP}

# Most of a file is small numbers: what needs no look is passed over in one step.
_REST = {code: n for code, n in _KNOWN.items() if code not in _LOOKED_AT}
_PLAIN = re.compile(
    b"(?:%b)*+"
    % b"|".join(
        b"[%b].{%d}" % (b"".join(re.escape(code) for code, n in _REST.items() if n == size), size)
        for size in sorted(set(_REST.values()))
    ),
    re.DOTALL,
)


def check_pickle(data: bytes) -> None:
    """Refuse a pickle that could take more than its size allows, of memory, time or stack.

    Args:
        data: The whole pickle. What makes no sense is left to the reader, which stops there.

    Raises:
        pickle.UnpicklingError: It is such a one.
    """
    try:
        _Pass(data).run()
    except struct.error:  # it ends within a number
        return


class _Pass:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.tuples = 0
        self.texts: set[int] | None = set()  # where the memo holds a text; None if not known

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
        """A value is put into the memo, or taken from it to be used again."""
        if code in _GETS:
            if self.texts is None or index not in self.texts:
                raise pickle.UnpicklingError("it uses a value twice that is no text")
        elif not 0 <= index <= len(self.data):
            raise pickle.UnpicklingError(f"it puts a value in place {index} of its memo")
        elif self.texts is not None:
            (self.texts.add if last in (*_TEXTS, b"S", b"V") else self.texts.discard)(index)
