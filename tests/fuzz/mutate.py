"""Corrupt a valid file: its bytes, its JSON, or the parts of its format."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from ocar.state import seal

Mutator = Callable[[bytes, Random], bytes]

NUMBERS = (0, 1, 2, 7, 127, 128, 255, 256, 65535, 1 << 20, 2**31 - 1, 2**31, 2**32 - 1)
LARGE = (*NUMBERS, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
OUTSIDE = ("../escape", "/tmp/escape", "a/../../escape", "C:\\escape", "..\\escape", "a\0b", "..")
MOST = 1 << 16
"""Most bytes of an input, so that a hundred thousand inputs take minutes."""


# --- bytes ---


def by_bytes(data: bytes, rng: Random) -> bytes:
    """One to four changes, regardless of the format."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _BYTES[rng.randrange(len(_BYTES))](out, rng)
    return bytes(out[:MOST])


def _place(out: bytearray, rng: Random) -> int:
    # Headers are at one of the ends.
    near = rng.randrange(min(len(out), 128)) if out else 0
    return rng.choice((near, max(len(out) - 1 - near, 0), rng.randrange(max(len(out), 1))))


def _flip(out: bytearray, rng: Random) -> None:
    if out:
        out[_place(out, rng)] ^= 1 << rng.randrange(8)


def _byte(out: bytearray, rng: Random) -> None:
    if out:
        out[_place(out, rng)] = rng.randrange(256)


def _cut(out: bytearray, rng: Random) -> None:
    del out[_place(out, rng) :]


def _delete(out: bytearray, rng: Random) -> None:
    place = _place(out, rng)
    del out[place : place + rng.choice((1, 2, 4, 8, 64))]


def _insert(out: bytearray, rng: Random) -> None:
    """A slice of the file itself, or noise."""
    source, length = _place(out, rng), rng.choice((1, 2, 4, 8, 64, 512))
    slice_ = out[source : source + length] if rng.random() < 0.7 else rng.randbytes(length)
    place = _place(out, rng)
    out[place:place] = slice_


def _length(out: bytearray, rng: Random) -> None:
    """A number where a length may be."""
    kind = rng.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.calcsize(kind)
    place = min(_place(out, rng), max(len(out) - size, 0))
    number = rng.choice(LARGE) + rng.choice((0, 0, 0, -1, 1))
    out[place : place + size] = struct.pack(kind, number % (1 << 8 * size))


def _digits(out: bytearray, rng: Random) -> None:
    """A number in text."""
    found = list(re.finditer(rb"[0-9]+", out[:4096]))
    if found:
        start, end = rng.choice(found).span()
        out[start:end] = rng.choice((str(rng.choice(LARGE)), "-1", "9" * 5000, "1e999")).encode()


_BYTES = (_flip, _flip, _byte, _cut, _delete, _insert, _length, _length, _digits)


# --- JSON ---


def by_json(data: bytes, rng: Random) -> bytes:
    """Replace, rename, duplicate or delete a value of a document."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return by_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        document = spoil(document, rng)
    text = json.dumps(document)
    if rng.random() < 0.05:  # text that json.dumps cannot make
        text = rng.choice((_deep(text, rng), text.replace("1", "9" * 5000, 1), text[1:]))
    return text.encode(errors="surrogatepass")


def by_lines(data: bytes, rng: Random) -> bytes:
    """Corrupt, duplicate, move or delete a line of a file of JSON lines."""
    lines = data.split(b"\n")
    place = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[place]
        case 1:
            lines.insert(rng.randrange(len(lines)), lines[place])
        case _:
            lines[place] = by_json(lines[place], rng)
    return b"\n".join(lines)[:MOST]


def spoil(document: Any, rng: Random) -> Any:
    """Change one value of a document."""
    places = list(_places(document))
    if not places or rng.random() < 0.02:
        return value(rng, document)
    holder, key = rng.choice(places)
    action = rng.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[rng.choice(("kind", "event", "", "x", "seed"))] = holder.pop(key)
    elif action == 2 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif action == 3:
        other, name = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[name]))
    else:
        holder[key] = value(rng, holder[key])
    return document


def value(rng: Random, before: Any) -> Any:
    """A random value, more likely of the type of the old one."""
    if isinstance(before, int | float) and rng.random() < 0.6:
        number = rng.choice(LARGE)
        return rng.choice((number, -number, number + 0.5, float(number), 1e308, -0.0, 10**30))
    return rng.choice(
        (
            None, True, False, -1, 0, 2**31, 10**12, 2**63, 0.5, 1e308, float("nan"), float("inf"),
            "", "1", "\ud800", "x" * 500, *OUTSIDE, [], {}, [[]], [1, "a"], [before], {"a": before},
            {"kind": "Normalize"}, {"kind": "CropFlip", "padding": 10**9}, {"kind": "os.system"},
            {"kind": []},
        )
    )  # fmt: skip


def _places(document: Any) -> Any:
    if isinstance(document, dict | list):
        for key in list(document) if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from _places(document[key])


def _deep(text: str, rng: Random) -> str:
    depth = rng.choice((50, 400, 900, 5000, 20000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    inner = opening * depth + "1" + closing * depth
    return rng.choice((inner, text[:-1] + ', "deep": ' + inner + "}"))


# --- formats ---


def by_safetensors(data: bytes, rng: Random) -> bytes:
    """Corrupt the header of a checkpoint, with its length corrected."""
    size = int.from_bytes(data[:8], "little")
    if size > len(data):
        return by_bytes(data, rng)
    header = json.loads(data[8 : 8 + size])
    meta = header["__metadata__"]
    if rng.random() < 0.6:
        meta["values"] = by_json(meta["values"].encode(), rng).decode(errors="surrogateescape")
    elif rng.random() < 0.5:
        header = spoil(header, rng)
    else:
        name = rng.choice([name for name in header if name != "__metadata__"])
        entry = header[name]
        match rng.randrange(4):
            case 0:
                count = rng.choice(LARGE)
                entry.update(shape=rng.choice(([count, 0], [0, count])), data_offsets=[0, 0])
            case 1:
                entry["dtype"] = rng.choice(("F64", "I8", "BOOL", "F8_E4M3", "U64", "F4", "C64"))
            case 2:
                entry["shape"] = [*entry["shape"], rng.choice((1, 1, 0, 2))]
            case _:
                header[rng.choice(("memory.columns.y", "objective.x", ""))] = header.pop(name)
    text = json.dumps(header, separators=(",", ":")).encode(errors="surrogatepass")
    text += b" " * (-len(text) % 8)
    return seal(struct.pack("<Q", len(text)) + text + data[8 + size :])


def by_sealed_bytes(data: bytes, rng: Random) -> bytes:
    """Change bytes of a checkpoint, with its checksum corrected."""
    return seal(by_bytes(data, rng))


def by_gzip(inner: Mutator) -> Mutator:
    """Corrupt the content and compress it again."""

    def spoil_inside(data: bytes, rng: Random) -> bytes:
        try:
            content = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return by_bytes(data, rng)
        return gzip.compress(inner(content, rng), 1, mtime=0)

    return spoil_inside


def by_tar(data: bytes, rng: Random) -> bytes:
    """Corrupt a header of a tar archive, with its checksum corrected."""
    out = bytearray(data)
    heads = [i for i in range(0, len(out) - 511, 512) if out[i + 257 : i + 262] == b"ustar"]
    if not heads:
        return by_bytes(data, rng)
    start = rng.choice(heads)
    match rng.randrange(5):
        case 0:
            name = rng.choice(OUTSIDE).encode()
            out[start : start + 100] = name.ljust(100, b"\0")
        case 1:  # size, in octal or in base 256
            count = rng.choice(LARGE)
            text = b"%011o\0" % count if count < 8**11 else b"\x80" + count.to_bytes(11, "big")
            out[start + 124 : start + 136] = text
        case 2:
            out[start + 156] = rng.choice(b"0123456789SLKxgVDM\0\xff")
        case 3:
            out[start : start + 512] = out[start : start + 512] * rng.choice((2, 40))
        case _:
            out[start + rng.randrange(512)] = rng.randrange(256)
    head = out[start : start + 512]
    head[148:156] = b" " * 8
    out[start + 148 : start + 156] = b"%06o\0 " % (sum(head) % 8**6)
    return bytes(out)


def by_zip(data: bytes, rng: Random) -> bytes:
    """Write a zip archive again with other entries, or change one of its fields."""
    if rng.random() < 0.5:
        return _zip_field(data, rng)
    entries = read_zip(data)
    if not entries:
        return by_bytes(data, rng)
    place = rng.randrange(len(entries))
    name, content = entries[place]
    link = False
    match rng.randrange(5):
        case 0:
            entries.append((name, content))
        case 1:
            entries[place] = (rng.choice(OUTSIDE) if rng.random() < 0.5 else f"../{name}", content)
        case 2:
            link = True
        case 3:
            del entries[place]
        case _:
            spoiled = by_json if name.endswith(".json") else by_bytes
            entries[place] = (name, spoiled(content, rng))
    return write_zip(entries, link=name if link else None, stored=rng.random() < 0.3)


def _zip_field(data: bytes, rng: Random) -> bytes:
    """Change a number in a header: of an entry, of the directory, or of its end."""
    out = bytearray(data)
    mark, fields = rng.choice(
        (
            (b"PK\1\2", ((8, "<H"), (10, "<H"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<H"))),
            (b"PK\1\2", ((30, "<H"), (32, "<H"), (38, "<I"), (42, "<I"), (46, "<H"))),
            (b"PK\3\4", ((6, "<H"), (8, "<H"), (18, "<I"), (22, "<I"), (26, "<H"), (28, "<H"))),
            (b"PK\5\6", ((4, "<H"), (8, "<H"), (10, "<H"), (12, "<I"), (16, "<I"), (20, "<H"))),
        )
    )
    found = [match.start() for match in re.finditer(re.escape(mark), out)]
    if not found:
        return by_bytes(data, rng)
    start = rng.choice(found)
    for offset, kind in rng.sample(fields, rng.choice((1, 1, 2))):
        size = struct.calcsize(kind)
        number = rng.choice(LARGE) % (1 << 8 * size)
        out[start + offset : start + offset + size] = struct.pack(kind, number)
    return bytes(out)


def read_zip(data: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def write_zip(
    entries: list[tuple[str, bytes]], *, link: str | None = None, stored: bool = False
) -> bytes:
    file = io.BytesIO()
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of two entries with one name
        with zipfile.ZipFile(file, "w", method, compresslevel=1) as archive:
            for name, content in entries:
                info = zipfile.ZipInfo(name)
                info.filename = name  # ZipInfo would normalise it
                info.compress_type = method
                if name == link:
                    info.external_attr = 0o120777 << 16
                archive.writestr(info, content)
    return file.getvalue()


_OPCODES = (
    b"r\xff\xff\xff\x7f", b"r\xff\xff\xff\xff", b"B\xff\xff\xff\x7f", b"T\xff\xff\xff\x7f",
    b"\x8e\xff\xff\xff\xff\xff\xff\x00\x00", b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x96\0\0\0\0\0\1\0\0", b"p999999999999\n", b"cos\nsystem\n", b"cbuiltins\neval\n", b"h\1",
    b"h\1h\1\x86", b"2", b"2\x86" * 40, b"\x85" * 2000, b")", b"}", b"]", b"(", b"e", b"u", b"s",
    b"R", b"b", b"\x81", b"0", b"N", b"\x91", b"\x94", b"\x82\1", b"I01\n", b"L" + b"9" * 5000
    + b"L\n", b"\x8b\xff\xff\xff\x7f", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"Pid\n",
)  # fmt: skip


def by_opcodes(data: bytes, rng: Random) -> bytes:
    """Insert instructions into a pickle."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.choice((2, 3, 4, len(out) - 1, _place(out, rng)))
        out[place:place] = rng.choice(_OPCODES)
    return bytes(out[:MOST])


# --- images ---


def by_png(data: bytes, rng: Random) -> bytes:
    """The chunks of a PNG, with a checksum that is right again; the pixels also unpacked."""
    if not data.startswith(b"\x89PNG"):
        return by_bytes(data, rng)
    chunks, place = [], 8
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    number = rng.randrange(len(chunks))
    name, content = chunks[number]
    if name == b"IDAT" and rng.random() < 0.7:
        content = zlib.compress(by_bytes(zlib.decompress(content), rng))
    else:
        content = by_bytes(content, rng)
    chunks[number] = (name, content)
    if rng.random() < 0.2:
        chunks.insert(rng.randrange(len(chunks)), rng.choice(chunks))
    return data[:8] + b"".join(
        struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks
    )
