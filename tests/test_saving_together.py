"""Several threads and processes save to one path: no save fails, and the file is always whole."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ocar.state import load_newest, load_state, save_state

SAVES = 25
WRITERS = 4


def save_often(path: str, writer: int) -> int:
    """Save many times; the content says by whom."""
    for count in range(SAVES):
        values = {"writer": writer, "count": count}
        save_state(path, {"a": torch.full((2000,), 100 * writer + count)}, values)
    return SAVES


def check_whole(path: Path) -> None:
    tensors, values = load_state(path)
    assert (tensors["a"] == 100 * values["writer"] + values["count"]).all()


def read_until(path: Path, over: threading.Event) -> int:
    reads = 0
    while not over.is_set():
        load_newest(path, check_whole)
        reads += 1
    return reads


def save_together(path: Path, processes: bool) -> None:
    save_often(str(path), 0)
    over = threading.Event()
    with ThreadPoolExecutor(1) as readers:
        reads = readers.submit(read_until, path, over)
        try:
            if processes:
                with multiprocessing.get_context("spawn").Pool(2) as pool:
                    jobs = [(str(path), writer) for writer in (1, 2)]
                    assert pool.starmap(save_often, jobs) == [SAVES] * 2
            else:
                with ThreadPoolExecutor(WRITERS) as pool:
                    saved = pool.map(save_often, [str(path)] * WRITERS, range(1, WRITERS + 1))
                    assert list(saved) == [SAVES] * WRITERS
        finally:
            over.set()
        assert reads.result() > 0
    check_whole(path)
    names = sorted(p.name for p in path.parent.iterdir())
    assert names == ["file", "file.previous"]  # nothing is left over


@pytest.mark.filterwarnings("error::ocar.errors.CheckpointWarning")
def test_threads(tmp_path: Path) -> None:
    save_together(tmp_path / "file", processes=False)


@pytest.mark.long
@pytest.mark.filterwarnings("error::ocar.errors.CheckpointWarning")
def test_processes(tmp_path: Path) -> None:
    save_together(tmp_path / "file", processes=True)


def test_threads_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the file is away for a moment, and the one before it is read."""

    def refuse(self: Path, target: Path) -> None:
        raise OSError("no links")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "file"
    with ThreadPoolExecutor(WRITERS) as pool:
        saved = pool.map(save_often, [str(path)] * WRITERS, range(WRITERS))
        assert list(saved) == [SAVES] * WRITERS
    check_whole(path)
