"""The journal: what was acknowledged comes back, or the journal says that it does not."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ocar.errors import DataError
from ocar.service.__main__ import main
from ocar.service.journal import Journal, ranges, repair
from ocar.service.records import MARKS_AT, read_head, read_marks

ITEM = (1, 8, 8)


def batch(seed: int, size: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (size, *ITEM), dtype=torch.uint8, generator=generator)
    return x, torch.arange(size) + seed % 7


def filled(folder: Path, batches: int, size: int = 3) -> Path:
    journal = Journal(folder, after=0)
    for number in range(1, batches + 1):
        assert journal.append(*batch(number, size), key=f"key-{number}") == number
    journal.close()
    (path,) = folder.iterdir()
    return path


def read(folder: Path, after: int = 0) -> list[tuple[Tensor, Tensor]]:
    journal = Journal(folder, after=after)
    journal.close()
    return list(journal.batches())


def same(found: list[tuple[Tensor, Tensor]], seeds: list[int], size: int = 3) -> bool:
    given = [batch(seed, size) for seed in seeds]
    return len(found) == len(given) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(found, given, strict=True)
    )


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["a pipe", "a link", "a second name"])
def test_only_a_regular_file_of_its_own_is_opened(tmp_path: Path, kind: str) -> None:
    """A pipe would block for ever, a link would let appends change a file elsewhere."""
    (folder := tmp_path / "state").mkdir()
    path, outside = filled(folder, 2), tmp_path / "outside"
    if kind == "a second name":
        outside.hardlink_to(path)
    else:
        path.rename(outside)
        path.symlink_to(outside) if kind == "a link" else os.mkfifo(path)
    before = outside.read_bytes()
    with pytest.raises(OSError, match=path.name):
        Journal(folder, after=0)
    assert outside.read_bytes() == before


def test_a_journal_gives_back_what_it_was_given(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    assert same(read(tmp_path), [1, 2, 3, 4, 5])
    assert same(read(tmp_path, after=2), [3, 4, 5])
    assert read(tmp_path, after=5) == []


def test_samples_of_other_types_come_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path, after=0)
    x = torch.randn(2, 3, 4, dtype=torch.float64).transpose(1, 2)
    journal.append(x, torch.tensor([1, 2]))
    journal.close()
    ((found, _),) = read(tmp_path)
    assert torch.equal(found, x)
    assert found.dtype == x.dtype


def test_what_stands_after_the_mark_was_never_acknowledged(tmp_path: Path) -> None:
    path = filled(tmp_path, 3)
    whole = path.read_bytes()
    assert [mark and mark.number for mark in read_marks(whole)] == [2, 3]
    head = read_head(whole)
    assert head is not None
    record = whole[head[2] : head[2] + (len(whole) - head[2]) // 3]
    tails = [record[:length] for length in range(0, len(record) + 1, 5)]  # cut off by a kill
    tails += [bytes(5000), os.urandom(300), record[:100] + bytes(200)]  # after a loss of power
    for tail in tails:
        path.write_bytes(whole + tail)
        assert same(read(tmp_path), [1, 2, 3])
        assert path.read_bytes() == whole


def test_an_altered_byte_is_found_and_the_others_are_saved(tmp_path: Path) -> None:
    path = filled(tmp_path, 4)
    whole = path.read_bytes()
    start = read_head(whole)
    assert start is not None
    length = (len(whole) - start[2]) // 4
    newest = MARKS_AT[0]  # of batch 4
    heads = [*range(24), *(at + n for at in MARKS_AT for n in range(20)), *range(1536, start[2])]
    for at in [*heads, *range(start[2], start[2] + 30), *range(start[2], len(whole), 13)]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if newest <= at < newest + 20:  # the batch is whole, so that the other mark is enough
            assert same(read(tmp_path), [1, 2, 3, 4])
            continue
        hit = (at - start[2]) // length + 1 if at >= start[2] else 0
        said = (
            f"of batches 1 to 4, {hit} cannot be read"
            if hit
            else "(its head|one of its marks) cannot be read"
        )
        with pytest.raises(DataError, match=rf"is damaged: {said}.*ocar.service repair {tmp_path}"):
            Journal(tmp_path, after=0)
        assert len(path.read_bytes()) == len(whole), "nothing was cut"
        if at % 13:
            continue
        kept = [number for number in range(1, 5) if number != hit]
        assert repair(tmp_path, after=0) == (len(kept), [hit] if hit else [])
        assert same(read(tmp_path), kept)
        (tmp_path / "journal-001-000000000001").unlink()


@pytest.mark.parametrize("size", [3, 80])
def test_a_damaged_end_is_no_record_cut_off_by_a_kill(tmp_path: Path, size: int) -> None:
    path = filled(tmp_path, 30, size)
    whole = path.read_bytes()
    head = read_head(whole)
    assert head is not None
    length = (len(whole) - head[2]) / 30  # a few bytes more from batch 10 on
    for spoiled, lost in {
        whole[:-4096] + bytes(4096): math.ceil(4096 / length),
        whole[:-1]: 1,
        whole[: -int(length) - 100]: 2,
        whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:]: 1,
    }.items():
        path.write_bytes(spoiled)
        first = 31 - lost
        said = "30 cannot" if lost == 1 else rf"{first}-30 cannot"
        with pytest.raises(DataError, match=f"of batches 1 to 30, {said} be read"):
            Journal(tmp_path, after=0)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="its head cannot be read"):
        Journal(tmp_path, after=0)


def test_a_kill_while_a_mark_is_written_loses_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path, 3)
    whole = path.read_bytes()
    at = MARKS_AT[1]
    for length in range(20):
        path.write_bytes(whole[: at + length] + bytes(20 - length) + whole[at + 20 :])
        journal = Journal(tmp_path, after=0)
        assert journal.append(*batch(4)) == 4
        journal.close()
        assert same(read(tmp_path), [1, 2, 3, 4])
    path.write_bytes(whole[:512] + bytes(1024) + whole[1536:])
    with pytest.raises(DataError, match="its marks cannot be read"):
        Journal(tmp_path, after=0)
    assert repair(tmp_path, after=0) == (3, [])


def test_a_missing_file_is_refused_and_a_needless_one_is_not_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path, after=0)
    for number in range(1, 7):
        journal.append(*batch(number))
        if number % 2 == 0:
            journal.trim(needed=1)
    journal.close()
    first, second, third, fourth = sorted(tmp_path.iterdir())
    second.unlink()
    with pytest.raises(DataError, match="begins with batch 5; 3 was to follow"):
        Journal(tmp_path, after=0)
    first.write_bytes(b"")  # a checkpoint holds what was in it
    assert same(read(tmp_path, after=4), [5, 6])
    with pytest.raises(DataError, match="its head cannot be read"):
        Journal(tmp_path, after=2)
    first.unlink()
    with pytest.raises(DataError, match="begins with batch 5; 3 was to follow"):
        Journal(tmp_path, after=2)
    third.unlink()
    fourth.unlink()
    filled(tmp_path, 2)
    with pytest.raises(DataError, match="ends with batch 2; the checkpoint has 3"):
        Journal(tmp_path, after=3)


def test_a_journal_forgets_what_is_not_needed_but_the_keys(tmp_path: Path) -> None:
    journal = Journal(tmp_path, after=0, keys=4)
    for number in range(1, 7):
        journal.append(*batch(number), key=f"key-{number}")
        journal.trim(needed=number - 1)
    journal.close()
    assert len(list(tmp_path.iterdir())) == 3
    for again in (Journal(tmp_path, after=4, keys=4), Journal(tmp_path, after=6, keys=4)):
        known = [again.known(f"key-{number}", *batch(number)) for number in range(1, 7)]
        assert known == [None, None, 3, 4, 5, 6]
        assert again.known("", *batch(3)) is None
        with pytest.raises(DataError, match="'key-3' came with another batch, number 3"):
            again.known("key-3", *batch(4))
        again.close()


def test_keys_survive_a_repair_and_those_of_lost_batches_do_not(tmp_path: Path) -> None:
    path = filled(tmp_path, 4)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"key-2", b"key-9"))
    with pytest.raises(DataError, match="2 cannot be read"):
        Journal(tmp_path, after=0)
    assert repair(tmp_path, after=0) == (3, [2])
    journal = Journal(tmp_path, after=0)
    known = [journal.known(f"key-{number}", *batch(number)) for number in range(1, 5)]
    assert known == [1, None, 2, 3]
    assert journal.append(*batch(2), key="key-2") == 4
    journal.close()
    assert path.exists()  # the old file stays


def test_damage_that_a_checkpoint_covers_loses_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path, 4)
    path.write_bytes(path.read_bytes().replace(b"key-2", b"key-9"))
    assert repair(tmp_path, after=3) == (1, [])
    assert same(read(tmp_path, after=3), [4])


Broken = Callable[[str, int], None]


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Broken:
    """Lets the next calls of a function of ``os`` fail."""

    def breaks(name: str, times: int) -> None:
        function, left = getattr(os, name), [times]

        def failing(handle: int, *rest: Any) -> Any:
            if left[0]:
                left[0] -= 1
                if name == "write":
                    function(handle, rest[0][: len(rest[0]) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(handle, *rest)

        monkeypatch.setattr(os, name, failing)

    return breaks


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_full_disk_leaves_the_journal_as_it_was(
    tmp_path: Path, breaks: Broken, name: str
) -> None:
    path = filled(tmp_path, 2)
    before = path.read_bytes()
    journal = Journal(tmp_path, after=0)
    breaks(name, 1)
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
        journal.append(*batch(3))
    assert path.read_bytes() == before
    assert not journal.failure
    assert journal.append(*batch(4)) == 3  # there is room again
    journal.close()
    assert same(read(tmp_path), [1, 2, 4])


def test_a_disk_that_stays_broken_ends_the_journal_until_the_next_start(
    tmp_path: Path, breaks: Broken
) -> None:
    filled(tmp_path, 2)
    journal = Journal(tmp_path, after=0)
    breaks("write", 2)  # also that of the old mark
    for _ in range(2):
        with pytest.raises(OSError):  # noqa: PT011
            journal.append(*batch(3))
    assert "cannot be written: No space left" in journal.failure
    with pytest.raises(OSError, match="cannot be written"):
        journal.trim(needed=1)
    journal.close()
    again = Journal(tmp_path, after=0)
    assert again.append(*batch(4)) == 3
    again.close()
    assert same(read(tmp_path), [1, 2, 4])


@pytest.mark.parametrize(("failing", "ends"), [(1, False), (2, True)])
def test_a_new_file_that_cannot_be_begun_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, ends: bool
) -> None:
    filled(tmp_path, 2)
    journal = Journal(tmp_path, after=0)
    calls, sync = [0], os.fsync

    def fails(handle: int) -> None:
        calls[0] += 1
        if 2 <= calls[0] < 2 + failing:  # the folder, with the new name in it
            raise OSError(errno.EIO, "Input/output error")
        sync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="Input/output error"):
            journal.trim(needed=1)
    assert bool(journal.failure) == ends
    if not ends:
        assert journal.append(*batch(3)) == 3
        journal.trim(needed=4)
    journal.close()
    assert same(read(tmp_path, after=0 if ends else 3), [1, 2] if ends else [])
    assert (tmp_path / "journal-000-000000000004").exists() != ends


def test_the_repair_command(tmp_path: Path) -> None:
    path = filled(tmp_path, 30)
    path.write_bytes(path.read_bytes()[:-1])
    command = [sys.executable, "-m", "ocar.service", "repair", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "Batches after the checkpoint: 29 kept, 1 lost (30).\n"
    assert same(read(tmp_path), list(range(1, 30)))


@pytest.mark.parametrize("words", [("repair",), ("checkpoints",), ("rollback", "4")])
def test_a_folder_that_is_missing_is_named(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["service", words[0], str(tmp_path / "gone"), *words[1:]])
    with pytest.raises(SystemExit, match=r"^ocar: There is no folder .*gone\. ocar serve says"):
        main()


def test_numbers_in_short() -> None:
    assert ranges([1, 3, 4, 5, 9, 10]) == "1, 3-5, 9-10"
    assert ranges([]) == "none"
