"""Folders and zip archives: the same files either way, and what hostile ones try."""

from __future__ import annotations

import os
import posixpath
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from dataset_files import below, everything, without_rights, write_folder, write_zip
from hypothesis import example, given
from hypothesis import strategies as st

from ocar.datasets.archives import Folder, Zip, check_inside, locate_tree
from ocar.errors import DataError

FILES = {"a/b/1.png": b"one", "a/b/10.png": b"ten", "a/c/2.png": b"two", "top.txt": b"text"}
HIDDEN = {".DS_Store": b"", "a/b/._1.png": b"", ".git/x": b""}


def test_folder_and_zip_have_the_same_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", FILES | HIDDEN)
    write_zip(tmp_path / "set.zip", below("set", FILES | HIDDEN) | {"other/x": b"", "set2/y": b""})
    with Folder(tmp_path / "set") as folder, Zip(tmp_path / "set.zip", top="set") as archive:
        for tree in (folder, archive):
            assert list(tree.files()) == sorted(FILES)
            assert list(tree.files("a/b")) == ["a/b/1.png", "a/b/10.png"]
            assert {name: tree.read(name) for name in tree.files()} == FILES
            with pytest.raises(DataError, match=r"missing\.png"):
                tree.read("a/missing.png")
        assert list(archive.files("none")) == []
        with pytest.raises(DataError, match=f"Cannot read {tmp_path / 'set' / 'none'}"):
            folder.files("none")


def test_the_folder_is_taken_before_the_archive(tmp_path: Path) -> None:
    places = {"x/set": "set.zip", "y/other": "other.zip"}
    archive, folder = (tmp_path / "set.zip", "set"), (tmp_path / "x" / "set", "")
    assert locate_tree(tmp_path, places) is None
    write_zip(tmp_path / "other.zip", {"other/a": b"zip"})
    assert locate_tree(tmp_path, places) == (tmp_path / "other.zip", "other")
    write_zip(tmp_path / "set.zip", {"set/a": b"zip"})
    assert locate_tree(tmp_path, places) == archive
    write_folder(tmp_path / "x" / "set", {"a": b"folder"})
    assert locate_tree(tmp_path, places) == locate_tree(tmp_path, places, wanted=["a"]) == folder
    assert locate_tree(tmp_path, places, wanted=["a", "b"]) == archive
    archive[0].unlink()
    assert locate_tree(tmp_path, places, wanted=["a", "b"]) == folder


def test_stamps_change_with_the_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", FILES)
    with Folder(tmp_path / "set") as tree:
        before = tree.files()
        path = tmp_path / "set" / "a" / "b" / "1.png"
        info = path.stat()
        path.write_bytes(b"One")
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
        after = tree.files()
    assert {name for name in FILES if before[name] != after[name]} == {"a/b/1.png"}
    stamps = []
    for content in (b"one", b"One"):
        write_zip(tmp_path / "set.zip", below("set", FILES | {"a/b/1.png": content}))
        with Zip(tmp_path / "set.zip", top="set") as archive:
            stamps.append(archive.files())
    assert {name for name in FILES if stamps[0][name] != stamps[1][name]} == {"a/b/1.png"}


# --- names ---


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd", "../x", "a/../../x", "a/..", "..", "C:/x", "c:x", "\\x", "\\\\host\\x",
        "a\\..\\..\\x", "a/b\0/../c",
    ],
)  # fmt: skip
def test_names_that_point_outside(name: str) -> None:
    with pytest.raises(DataError, match=r"list\.txt: its entry .* points outside"):
        check_inside(name, "list.txt")


@given(st.lists(st.sampled_from(["a", "b.jpg", "..", ".", "", "...", "..a"]), max_size=6))
def test_a_name_that_passes_stays_inside(parts: list[str]) -> None:
    name = "/".join(parts)
    try:
        check_inside(name, "list.txt")
    except DataError:
        assert name.startswith("/") or ".." in parts
    else:
        resolved = posixpath.normpath(posixpath.join("/top", name))
        assert resolved == "/top" or resolved.startswith("/top/")


# --- hostile and damaged archives ---


def entry(name: str, *, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ([entry("../evil.png")], r"its entry '\.\./evil\.png' points outside"),
        ([entry("/tmp/evil.png")], "points outside"),
        ([entry("set/../../evil.png")], "points outside"),
        ([entry("set\\..\\..\\evil.png")], "points outside"),
        ([entry("set/link", mode=stat.S_IFLNK | 0o777)], "'set/link' is a link"),
        ([entry("set/a"), entry("set/a")], "'set/a' occurs twice"),
    ],
)
def test_hostile_zips_are_refused_whole(
    tmp_path: Path, infos: list[zipfile.ZipInfo], message: str
) -> None:
    path = tmp_path / "root" / "set.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("set/good.png", b"good")
        for number, info in enumerate(infos):
            # Twice the same name: zipfile warns of it when writing.
            info.filename, real = f"{number}{'x' * (len(info.filename) - 1)}", info.filename
            archive.writestr(info, b"evil")
            info.filename = info.orig_filename = real
    content = path.read_bytes()
    for number, info in enumerate(infos):
        written = f"{number}{'x' * (len(info.filename) - 1)}"
        content = content.replace(written.encode(), info.filename.encode())
    path.write_bytes(content)
    before = everything(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        Zip(path, top="set")
    assert str(path) in str(caught.value)
    assert everything(tmp_path) == before


def test_a_zip_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    write_zip(path, {"set/a": b"0123456789" * 20, "set/b": b"x"})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=f"Cannot read {path}"):
            Zip(path, top="set")


@given(place=st.integers(0), byte=st.integers(0, 255))
@example(place=159, byte=0)  # the entry claims to be empty
def test_a_changed_zip_gives_the_content_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.zip"
    content = bytes(np.random.default_rng(1).integers(0, 9, 100, dtype=np.uint8))
    write_zip(path, {"set/a": content})
    whole = bytearray(path.read_bytes())
    whole[place % len(whole)] = byte
    path.write_bytes(whole)
    read = []
    try:
        with Zip(path, top="set") as archive:
            read = [archive.read(name) for name in archive.files()]
    except DataError as error:
        read = [str(error)]
    assert read in ([content], []) or (isinstance(read[0], str) and str(path) in read[0])


def test_what_claims_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocar.datasets.archives.MOST_BYTES", 1000)
    write_zip(tmp_path / "set.zip", {"set/bomb": b"\0" * 5000})
    write_folder(tmp_path, {"set/bomb": b"\0" * 5000})
    with Zip(tmp_path / "set.zip", top="set") as archive, Folder(tmp_path / "set") as folder:
        for tree in (archive, folder):
            with pytest.raises(DataError, match=r"bomb has 5000 bytes\. Must be at most 1000"):
                tree.read("bomb")
    with zipfile.ZipFile(tmp_path / "set.zip", "w", zipfile.ZIP_LZMA) as written:
        written.writestr("set/a", b"x")
    with (
        Zip(tmp_path / "set.zip", top="set") as archive,
        pytest.raises(DataError, match="set/a is compressed by method 14"),
    ):
        archive.read("a")


def test_folders_that_never_end(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "again").symlink_to(tmp_path / "set")
    with Folder(tmp_path / "set") as tree, pytest.raises(DataError, match="folders deep"):
        tree.files()


def test_files_without_rights_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", FILES)
    write_zip(tmp_path / "set.zip", {"set/a": b""})
    with without_rights():
        if os.access(tmp_path, os.R_OK, effective_ids=True):
            pytest.skip("the folder of this user's tests is open to all")
        refused = "Permission denied"
        with pytest.raises(DataError, match=f"Cannot read {tmp_path}/none: {refused}"):
            locate_tree(tmp_path, {"none": "set.zip"})
        with pytest.raises(DataError, match=f"Cannot read {tmp_path}/set.zip: {refused}"):
            Zip(tmp_path / "set.zip", top="set")
        with pytest.raises(DataError, match=f"Cannot read {tmp_path}/set: {refused}"):
            Folder(tmp_path / "set").files()
        with pytest.raises(DataError, match=rf"set/a/b/1\.png: {refused}"):
            Folder(tmp_path / "set").read("a/b/1.png")
