"""Files appear whole, what killed processes leave is cleared, one process works in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from ocar.errors import RunError
from ocar.files import clear_partials, folder_lock, make_folder, new_file, write_whole
from ocar.state import load_newest, load_state, previous, save_state

WRITE = """
import sys, time
from pathlib import Path
from ocar.files import new_file
with new_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.readline()
"""


def left_over(folder: Path) -> list[Path]:
    return list(folder.glob(".*.partial"))


def test_what_a_killed_process_left_is_cleared_and_what_a_live_one_writes_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file [1]"
    command = [sys.executable, "-c", WRITE, str(path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "writing\n"
        (writing,) = left_over(tmp_path)
        clear_partials(tmp_path)
        write_whole(path, b"mine")
        assert left_over(tmp_path) == [writing]
        other.send_signal(signal.SIGKILL)
    assert left_over(tmp_path) == [writing]
    write_whole(path, b"again")
    assert left_over(tmp_path) == []
    assert path.read_bytes() == b"again"


@pytest.mark.parametrize("how", ["save", "load"])
def test_saving_and_loading_clear_what_killed_saves_left(tmp_path: Path, how: str) -> None:
    path = tmp_path / "state"
    save_state(path, {"a": torch.ones(3)}, {})
    for name in (".state.12.newest.partial", ".state.12-0a.partial", ".other.12-0a.partial"):
        (tmp_path / name).write_bytes(b"half")
    if how == "save":
        save_state(path, {"a": torch.ones(3)}, {})
    else:
        load_newest(path, load_state)
    assert [left.name for left in left_over(tmp_path)] == [".other.12-0a.partial"]


def test_a_save_syncs_the_file_then_the_folder_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")  # noqa: PTH112
        sync(handle)

    def replaced(source: Path, target: Path) -> None:
        done.append(f"rename to {Path(target).name}")
        replace(source, target)

    save_state(tmp_path / "state", {"a": torch.ones(3)}, {})
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    save_state(tmp_path / "state", {"a": torch.ones(3)}, {})
    assert done == ["file", "rename to state.previous", "rename to state", "folder"]


def test_many_threads_save_to_one_path(tmp_path: Path) -> None:
    path, failed = tmp_path / "state", []

    def save(value: int) -> None:
        try:
            for _ in range(20):
                save_state(path, {"a": torch.full((50,), value)}, {})
                assert len(load_state(path)[0]["a"].unique()) == 1
        except Exception as error:  # noqa: BLE001 (shown below)
            failed.append(repr(error))

    threads = [threading.Thread(target=save, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state", previous(path).name]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with pytest.raises(TypeError), new_file(path) as file:
        file.write("no bytes")  # type: ignore[call-overload]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_lock_that_is_a_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    make_folder(tmp_path / "a" / "b")
    lock = tmp_path / "a" / "b" / ".lock"
    lock.symlink_to(outside)
    with pytest.raises(RunError, match="it is a link"), folder_lock(lock.parent):
        pass
    assert outside.read_bytes() == b"precious"
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(RunError, match="it is no regular file"), folder_lock(lock.parent):
        pass
