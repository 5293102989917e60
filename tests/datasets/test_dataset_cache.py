"""The cache of decoded images: whole or not there, and never needed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from dataset_files import domain_files, everything, picture, without_rights, write_folder

from ocar.datasets import Arrays, load_domains
from ocar.datasets.cache import CACHE, Entry, Images, load_or_make, verify_cache
from ocar.datasets.decoding import decode
from ocar.errors import DataError

SHAPE = (6, 3, 4, 4)
PIXELS = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)


def entry(folder: Path, fingerprint: str = "0123456789abcdef01") -> Entry:
    return Entry(folder=folder, name="set-4", fingerprint=fingerprint, shape=SHAPE)


class Maker:
    """Counts how often the images were made."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Iterator[Images]:
        self.times += 1
        yield from PIXELS


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


WHOLE = {"set-4-0123456789abcdef.npy", "set-4-0123456789abcdef.json"}


def test_made_once_then_mapped(tmp_path: Path) -> None:
    make = Maker()
    folder = tmp_path / "deep" / CACHE
    for _ in range(3):
        array = load_or_make(entry(folder), make)
        np.testing.assert_array_equal(array, PIXELS)
        assert isinstance(array, np.memmap)
    assert make.times == 1
    assert files(folder) == WHOLE
    # Any program can read it, and what is written to the array stays in this process.
    array[:] = 0
    np.testing.assert_array_equal(np.load(entry(folder).array_path), PIXELS)
    np.testing.assert_array_equal(load_or_make(entry(folder), make), PIXELS)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)


def rewrite_note(path: Path, **changed: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


DAMAGES: dict[str, tuple[Callable[[Entry], object], str]] = {
    "a flipped bit": (lambda e: flip(e.array_path), "its checksum is wrong"),
    "cut": (lambda e: os.truncate(e.array_path, 200), "it has 200 bytes, not 416"),
    "longer": (
        lambda e: e.array_path.write_bytes(e.array_path.read_bytes() + b"x"),
        "it has 417 bytes",
    ),
    "empty": (lambda e: e.array_path.write_bytes(b""), "it has 0 bytes"),
    "no JSON": (lambda e: e.note_path.write_bytes(b"\xff{"), "damaged"),
    "other JSON": (lambda e: e.note_path.write_text("[1]"), "no note"),
    "half a note": (lambda e: e.note_path.write_text('{"format": 1}'), "no note"),
    "no number": (lambda e: rewrite_note(e.note_path, bytes="x"), "no note"),
    "newer": (lambda e: rewrite_note(e.note_path, format=2), "format 2, not 1"),
    "other files": (lambda e: rewrite_note(e.note_path, fingerprint="0" * 64), "other files"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_entries_are_made_again(tmp_path: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    make = Maker()
    load_or_make(entry(tmp_path), make)
    damage(entry(tmp_path))
    with pytest.warns(UserWarning, match=message) as caught:
        array = load_or_make(entry(tmp_path), make)
    assert len(caught) == 1
    assert str(entry(tmp_path).array_path) in str(caught[0].message)
    np.testing.assert_array_equal(array, PIXELS)
    assert make.times == 2
    assert files(tmp_path) == WHOLE
    np.testing.assert_array_equal(load_or_make(entry(tmp_path), make), PIXELS)
    assert make.times == 2


@pytest.mark.parametrize("lost", ["array_path", "note_path"])
def test_half_an_entry_is_none(tmp_path: Path, lost: str) -> None:
    make = Maker()
    load_or_make(entry(tmp_path), make)
    getattr(entry(tmp_path), lost).unlink()
    np.testing.assert_array_equal(load_or_make(entry(tmp_path), make), PIXELS)
    assert make.times == 2


def test_verify_hashes_again(tmp_path: Path) -> None:
    load_or_make(entry(tmp_path), Maker())
    path = entry(tmp_path).array_path
    assert verify_cache(tmp_path, "set") == ""
    assert verify_cache(tmp_path / "none", "set") == ""
    info = path.stat()
    with path.open("r+b") as file:  # as a failing disk does: behind the file system's back
        file.seek(300)
        file.write(bytes([PIXELS.flat[300 - 128] ^ 1]))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert entry(tmp_path).load() is not None  # compared once in this process already
    assert verify_cache(tmp_path, "set") == (
        f"The cache file {path} is damaged: its checksum is wrong."
    )
    assert verify_cache(tmp_path, "se") == verify_cache(tmp_path, "set-4") == ""
    with pytest.warns(UserWarning, match="its checksum is wrong"):
        np.testing.assert_array_equal(load_or_make(entry(tmp_path), Maker()), PIXELS)


def test_other_sources_replace_the_entry(tmp_path: Path) -> None:
    keep = ["set-40-0123456789abcdef.npy", "set-4-notes.json", "set-4-0123456789abcdef.npy.bak"]
    for name in [*keep, ".set-4-0123456789abcdef.npy.1.partial"]:
        (tmp_path / name).write_bytes(b"")
    load_or_make(entry(tmp_path), Maker())
    load_or_make(entry(tmp_path, "f" * 64), Maker())
    assert files(tmp_path) == {*keep, f"set-4-{'f' * 16}.npy", f"set-4-{'f' * 16}.json"}


# --- where it cannot be written ---


def test_a_full_disk_costs_only_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        assert size == 128 + PIXELS.nbytes
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    make = Maker()
    monkeypatch.setattr("ocar.datasets.cache.os.posix_fallocate", full, raising=False)
    message = rf"Cannot keep decoded images in {tmp_path} \(No space left"
    with pytest.warns(UserWarning, match=message) as caught:
        array = load_or_make(entry(tmp_path), make)
    assert len(caught) == 1
    np.testing.assert_array_equal(array, PIXELS)
    assert files(tmp_path) == set()
    array[:] = 1  # is the caller's own


def test_a_disk_that_fills_meanwhile(tmp_path: Path) -> None:
    """The system refuses to write more than so many bytes to a file, for real."""
    script = f"""
    import errno, os, resource, signal, warnings
    from pathlib import Path
    import numpy as np
    import ocar.datasets.cache as cache

    def no_reserve(*_):
        raise OSError(errno.EOPNOTSUPP, "")

    cache.os.posix_fallocate = no_reserve
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 3, 64, 64), dtype=np.uint8)
    entry = cache.Entry(
        folder=Path({str(tmp_path)!r}), name="set-64", fingerprint="0" * 64, shape=pixels.shape
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        array = cache.load_or_make(entry, lambda: iter(pixels))
    assert len(caught) == 1 and "File too large" in str(caught[0].message), caught
    np.testing.assert_array_equal(array, pixels)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    assert files(tmp_path) == set()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that everybody may read and only this user may write to."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_read_only_root_costs_only_the_cache(public_folder: Path) -> None:
    write_folder(public_folder / "set", domain_files())
    public_folder.chmod(0o555)
    before = everything(public_folder)
    message = rf"{public_folder / CACHE} \(Permission denied\)"
    with without_rights(), pytest.warns(UserWarning, match=message) as caught:
        arrays = load_domains(public_folder / "set", size=5)
    assert len(caught) == 1
    public_folder.chmod(0o755)
    assert not (public_folder / CACHE).exists()
    assert everything(public_folder) == before
    written = load_domains(public_folder / "set", size=5)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert torch.equal(getattr(arrays, name), getattr(written, name))
    with without_rights():  # reading what another user made is no problem
        again = load_domains(public_folder / "set", size=5)
    assert torch.equal(again.x_train, arrays.x_train)
    (public_folder / CACHE).chmod(0)  # and what may not even be read is not needed
    with without_rights(), pytest.warns(UserWarning, match=message) as caught:
        again = load_domains(public_folder / "set", size=5)
    assert len(caught) == 1
    assert torch.equal(again.x_train, arrays.x_train)
    (public_folder / CACHE).chmod(0o755)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / CACHE).write_text("mine")
    with pytest.warns(UserWarning, match="File exists"):
        np.testing.assert_array_equal(load_or_make(entry(tmp_path / CACHE), Maker()), PIXELS)
    assert (tmp_path / CACHE).read_text() == "mine"


def test_an_image_that_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", domain_files() | {"photo/dog/3.png": b"broken"})
    with pytest.raises(DataError, match=r"Cannot read .*set/photo/dog/3\.png as an image"):
        load_domains(tmp_path / "set", size=5)
    assert files(tmp_path / CACHE) == set()
    write_folder(tmp_path / "set", domain_files())
    assert len(load_domains(tmp_path / "set", size=5).x_train) == 16


# --- several processes ---

SLOW = """
import sys, time
from pathlib import Path
import numpy as np
from ocar.datasets.cache import Entry, load_or_make

folder, log, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 4, 4), dtype=np.uint8)

def rows():
    with log.open("a") as file:
        file.write("made\\n")
    for row in pixels:
        time.sleep(pause)
        yield row

entry = Entry(folder=folder, name="set-4", fingerprint="0123456789abcdef01", shape=pixels.shape)
np.testing.assert_array_equal(load_or_make(entry, rows), pixels)
"""


def start(folder: Path, log: Path, pause: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SLOW, str(folder), str(log), str(pause)]
    return subprocess.Popen(command)


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"{path} did not appear")


def test_a_killed_writer_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    folder, log = tmp_path / CACHE, tmp_path / "log"
    process = start(folder, log, 30)
    wait_for(log)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [name for name in files(folder) if name.endswith(".partial")]
    assert not WHOLE & files(folder)
    make = Maker()
    np.testing.assert_array_equal(load_or_make(entry(folder), make), PIXELS)
    assert make.times == 1
    assert files(folder) == WHOLE


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="no locks: each process would make its own")
def test_processes_at_once_make_it_once(tmp_path: Path) -> None:
    folder, log = tmp_path / CACHE, tmp_path / "log"
    processes = [start(folder, log, 0.3) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert log.read_text() == "made\n"
    assert files(folder) == WHOLE


# --- through a loader ---


def loaded(root: Path, monkeypatch: pytest.MonkeyPatch, size: int = 5) -> tuple[Arrays, bool]:
    """A data set, and whether it was decoded."""
    decoded: list[bytes] = []

    def watch(data: bytes, size: int) -> Images:
        decoded.append(data)
        return decode(data, size)

    with monkeypatch.context() as patch:
        patch.setattr("ocar.datasets.pictures.decode", watch)
        arrays = load_domains(root / "set", size=size)
    return arrays, bool(decoded)


def test_changed_sources_are_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "set", domain_files())
    first, decoded = loaded(tmp_path, monkeypatch)
    assert decoded
    second, decoded = loaded(tmp_path, monkeypatch)
    assert not decoded
    assert torch.equal(first.x_train, second.x_train)
    assert torch.equal(first.x_test, second.x_test)
    _, decoded = loaded(tmp_path, monkeypatch, size=4)
    assert decoded
    _, decoded = loaded(tmp_path, monkeypatch)
    assert not decoded
    write_folder(tmp_path / "set", {"photo/dog/0.png": picture(99)})
    third, decoded = loaded(tmp_path, monkeypatch)
    assert decoded
    levels = torch.cat([third.x_train, third.x_test])[:, 0, 0, 0].tolist()
    assert levels.count(99) == 1
    (tmp_path / "set" / "photo" / "dog" / "1.png").rename(
        tmp_path / "set" / "art" / "dog" / "9.png"
    )
    fourth, decoded = loaded(tmp_path, monkeypatch)
    assert decoded
    assert len(fourth.x_train) + len(fourth.x_test) == 20
    assert len(files(tmp_path / CACHE)) == 4  # of two sizes, the latest each


def test_names_tell_files_of_one_size_and_time_apart(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "d" / "c"
    write_folder(folder, {f"{i}.bmp": picture(i, kind="BMP") for i in range(6)})
    for path in folder.iterdir():
        os.utime(path, ns=(10**18, 10**18))

    def order() -> list[int]:
        x = load_domains(tmp_path / "set", size=6).x_train
        return x[:, 0, 0, 0].tolist()

    before = order()
    (folder / f"{before[0]}.bmp").rename(folder / "9.bmp")
    after = order()
    assert after != before
    assert after == [*sorted(set(after) - {before[0]}), *({before[0]} & set(after))]


def test_moved_folders_keep_their_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "old" / "set", domain_files())
    loaded(tmp_path / "old", monkeypatch)
    (tmp_path / "old").rename(tmp_path / "new")
    _, decoded = loaded(tmp_path / "new", monkeypatch)
    assert not decoded
