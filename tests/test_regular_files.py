"""Only regular files are opened, nothing is written through a link, and texts cannot command."""

from __future__ import annotations

import json
import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from datasets.dataset_files import tiny_files, write_folder
from hypothesis import given
from hypothesis import strategies as st

import ocar
from ocar import datasets
from ocar.datasets import load_cifar10, load_mnist, load_tiny_imagenet
from ocar.datasets.archives import Zip, read_tar
from ocar.datasets.cache import Entry, load_or_make
from ocar.datasets.mnist import read_idx
from ocar.errors import CheckpointError, DataError
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


def test_fifos_among_data_files_do_not_hang(tmp_path: Path) -> None:
    def fifo(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        return path

    for name in ("cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz"):
        fifo(name)
        with pytest.raises(DataError, match="No CIFAR-10"):
            load_cifar10(tmp_path)
    fifo("MNIST/raw/train-images-idx3-ubyte")
    with pytest.raises(DataError, match="No MNIST file"):
        load_mnist(tmp_path)
    fifo("tiny-imagenet-200.zip")
    with pytest.raises(DataError, match="No Tiny ImageNet"):
        load_tiny_imagenet(tmp_path)
    write_folder(tmp_path / "tiny-imagenet-200", tiny_files())
    fifo("tiny-imagenet-200/val/val_annotations.txt")
    with pytest.raises(DataError, match=r"val_annotations\.txt: it is no regular file"):
        load_tiny_imagenet(tmp_path)
    assert not any(one.whole for one in datasets.status(tmp_path) if one.name != "digits")
    readers: tuple[Callable[[Path], object], ...] = (
        read_idx,
        lambda path: Zip(path, top="a"),
        lambda path: read_tar(path, ()),
    )
    for read in readers:
        with pytest.raises(DataError, match="it is no regular file"):
            read(fifo("file"))
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        ocar.load(fifo("file"), torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["note_path", "array_path", ".lock"])
@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_the_cache_survives_fifos_and_links(tmp_path: Path, name: str, kind: str) -> None:
    rows = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    entry = Entry(folder=cache, name="set-2", fingerprint="ab" * 32, shape=rows.shape)
    np.testing.assert_array_equal(load_or_make(entry, lambda: iter(rows)), rows)
    path = cache / name if name == ".lock" else getattr(entry, name)
    path.unlink()
    outside.write_bytes(b"precious")
    os.mkfifo(path) if kind == "fifo" else path.symlink_to(outside)
    if name == ".lock":
        entry.note_path.unlink()  # so that it has to be written
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is made again, or in memory
        np.testing.assert_array_equal(load_or_make(entry, lambda: iter(rows)), rows)
    assert outside.read_bytes() == b"precious"


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
