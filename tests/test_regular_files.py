"""Only regular files are opened, nothing is written through a link, and texts cannot command."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocar.files import (
    NotRegularError,
    open_regular,
    printable,
    printable_values,
    read_file,
    write_whole,
)

pytestmark = pytest.mark.timeout(30)  # a reader of a FIFO would wait for ever

MODES: tuple[Literal["rb", "ab", "r+b"], ...] = ("rb", "ab", "r+b")


@pytest.mark.parametrize("mode", MODES)
def test_a_fifo_a_socket_and_a_device_do_not_block(
    tmp_path: Path, mode: Literal["rb", "ab", "r+b"]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    for path in (tmp_path / "fifo", tmp_path / "to-fifo", tmp_path / "socket", Path("/dev/zero")):
        with pytest.raises(NotRegularError, match=r"no regular file|is a link"):
            open_regular(path, mode)
    with pytest.raises(NotRegularError):
        open_regular(tmp_path, mode)
    with pytest.raises(NotRegularError):
        read_file(tmp_path / "fifo")


def test_a_file_that_changes_into_a_fifo_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "file", os.stat
    path.write_bytes(b"content")

    def swap(given: Any, **options: Any) -> os.stat_result:
        found = seen(given, **options)
        path.unlink()
        os.mkfifo(path)
        return found

    monkeypatch.setattr("ocar.files.os.stat", swap)
    with pytest.raises(NotRegularError, match="no regular file"):
        open_regular(path)


def test_links_are_read_and_not_written(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    assert read_file(tmp_path / "link") == b"precious"
    for name in ("link", "gone"):
        with pytest.raises(NotRegularError, match="it is a link"):
            open_regular(tmp_path / name, "ab")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "second").hardlink_to(outside)
    assert read_file(tmp_path / "second") == b"precious"
    with pytest.raises(NotRegularError, match="a second name"):
        open_regular(tmp_path / "second", "ab")
    assert outside.read_bytes() == b"precious"


def test_a_file_is_replaced_without_its_link(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "file"
    outside.write_bytes(b"precious")
    for trap in (path, tmp_path / f".file.{os.getpid()}.partial"):
        trap.symlink_to(outside)
        write_whole(path, b"new")
        assert (path.read_bytes(), path.is_symlink()) == (b"new", False)
        assert outside.read_bytes() == b"precious"
        path.unlink()
    path.hardlink_to(outside)
    write_whole(path, b"new")
    assert (path.read_bytes(), outside.read_bytes()) == (b"new", b"precious")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(OSError, match=r"it has 1099511627776 bytes. Must be at most 9"):
        read_file(tmp_path / "file", most=9)


@given(text=st.text(st.characters(exclude_categories=())))
def test_printed_texts_command_nothing(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert printable(text, lines=True).replace("\n", "").isprintable()
    if text.isprintable():
        assert shown == text
    # The codes are those of JSON, so that a reader of JSON gets the text.
    plain = text.replace("\\", "").replace('"', "")
    read = json.loads(f'"{printable(plain)}"')
    pairs = ("utf-16", "surrogatepass")
    assert read.encode(*pairs) == plain.encode(*pairs)


def test_texts_at_any_depth() -> None:
    value = {"a\x1b": ["\x9b2J", 1.5, None, {"b": "\u202ex\n"}]}
    assert printable_values(value) == {
        "a\\u001b": ["\\u009b2J", 1.5, None, {"b": "\\u202ex\\u000a"}]
    }
