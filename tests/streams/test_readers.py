"""Readers of loaders, tables, files and queues: what they give, also after a kill."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sources import (
    BATCH,
    EVERY_READER,
    LISTS,
    NUMBERS,
    READERS,
    ROWS,
    picture,
    rows,
    write_csv,
    write_parquet,
    write_tar,
)
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import ocar
from ocar.evaluate import Finished, evaluate
from ocar.streams import (
    CSVReader,
    IterableStream,
    LoaderReader,
    ParquetReader,
    TableReader,
    TarReader,
)
from ocar.structure import as_samples, equal


def same(one: Any, other: Any) -> bool:
    return equal(one.x, other.x) and torch.equal(one.y, other.y)


@EVERY_READER
def test_goes_on_from_every_place(name: str, tmp_path: Path) -> None:
    """After any batch: a new reader and a new stream give the same batches as before the kill."""
    whole = list(IterableStream(READERS[name](tmp_path)))
    assert sum(len(batch.y) for batch in whole) == ROWS
    assert [batch.last for batch in whole] == [False] * (len(whole) - 1) + [True]
    for killed in range(len(whole) + 1):
        stream = IterableStream(READERS[name](tmp_path))
        for _ in itertools.islice(stream, killed):
            pass
        saved = json.dumps(stream.state_dict())
        again = IterableStream(READERS[name](tmp_path))
        again.load_state_dict(json.loads(saved))
        rest = list(again)
        assert [batch.index for batch in rest] == list(range(killed, len(whole)))
        assert all(map(same, rest, whole[killed:]))


@EVERY_READER
def test_goes_on_in_a_later_task(name: str, tmp_path: Path) -> None:
    def make() -> IterableStream:
        return IterableStream(READERS[name](tmp_path), rows_in_memory(), READERS[name](tmp_path))

    def rows_in_memory() -> list[Any]:
        return [pair for pair, _ in READERS[name](tmp_path).read()]

    whole = list(make())
    assert [batch.task for batch in whole if batch.last] == [0, 1, 2]
    for killed in range(0, len(whole) + 1, 3):
        stream, again = make(), make()
        for _ in itertools.islice(stream, killed):
            pass
        again.load_state_dict(stream.state_dict())
        rest = list(again)
        assert [(b.index, b.task, b.last) for b in rest] == [
            (b.index, b.task, b.last) for b in whole[killed:]
        ]
        assert all(map(same, rest, whole[killed:]))


@EVERY_READER
def test_samples_before_the_place_are_not_made(name: str, tmp_path: Path) -> None:
    """A place is not found by skipping batches; a source without a seek must."""
    reader = READERS[name](tmp_path)
    pairs = list(reader.read())
    _, place = pairs[5]
    assert all(isinstance(value, int) for value in place.values())
    (x, y), _ = next(reader.read(place))
    assert equal(as_samples(x), as_samples(pairs[6][0][0]))
    assert torch.equal(torch.as_tensor(y), torch.as_tensor(pairs[6][0][1]))


def test_a_table_is_not_read_before_the_place() -> None:
    class Watched(list[Any]):
        first = 10**9

        def __getitem__(self, index: Any) -> Any:
            self.first = min(self.first, index.start)
            return super().__getitem__(index)

    table = Watched(rows())
    list(TableReader(table, **NUMBERS).read({"row": 30}))
    assert table.first == 30


def test_a_loader_does_not_load_before_the_place() -> None:
    asked: list[int] = []

    class Watched(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return super().__getitem__(index)

    data = Watched(torch.arange(20.0)[:, None], torch.arange(20))
    list(LoaderReader(DataLoader(data, batch_size=5, shuffle=True)).read({"batch": 3}))
    assert len(asked) == 5


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    wanted = torch.tensor([[row["a"], row["b"], row["c"]] for row in rows()])
    read = CSVReader(write_csv(tmp_path / "a.csv", rows()), **NUMBERS)
    assert torch.allclose(torch.cat([x for x, _ in read]), wanted)
    assert torch.cat([y for _, y in read]).tolist() == [row["y"] for row in rows()]
    named = CSVReader(
        tmp_path / "a.csv", x=["a"], y="kind", classes=("cat", "dog"), batch_size=BATCH
    )
    labels = [["cat", "dog"][label] for _, y in named for label in y.tolist()]
    assert labels == [row["kind"] for row in rows()]
    targets = CSVReader(tmp_path / "a.csv", x=["a"], y=["b", "c"], batch_size=ROWS)
    ((_, y),) = targets
    assert torch.allclose(y, wanted[:, 1:])
    assert y.dtype == torch.float32
    made = TableReader(rows(), x=lambda row: np.float32([row["a"]]), y=lambda row: row["y"] + 1)
    assert next(iter(made))[1].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    lists = ParquetReader(write_parquet(tmp_path / "a", rows()), **LISTS)
    first = next(iter(lists))[0]
    assert first["ids"].tolist() == [row["list"] for row in rows()[:BATCH]]
    assert first["ids"].dtype == torch.int64
    assert first["numbers"].dtype == torch.float32


def test_pictures_arrays_and_json_in_shards(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.arange(6, dtype=np.int32))
    path = write_tar(
        tmp_path / "a.tar",
        {
            "x/0.png": picture(0),
            "x/0.ids.npy": array.getvalue(),
            "x/0.json": b'{"kind": 3}',
            "x/0.raw": b"\x02",
        },
    )
    reader = TarReader(
        path,
        x={"image": "png", "ids": "ids.npy", "raw": "raw"},
        y=lambda sample: sample["json"]["kind"],
        image_size=8,
        decoders={"raw": lambda data: np.frombuffer(data, np.uint8).copy()},
    )
    ((x, y),) = reader
    assert x["image"].shape == (1, 3, 8, 8)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert np.array_equal(x["image"][0].numpy().transpose(1, 2, 0), pixels)
    assert x["ids"].tolist() == [[0, 1, 2, 3, 4, 5]]
    assert x["raw"].tolist() == [[2]]
    assert y.tolist() == [3]


@EVERY_READER
def test_readers_are_learned_evaluated_and_searched_on(name: str, tmp_path: Path) -> None:
    reader = READERS[name](tmp_path)
    x, y = next(iter(reader))
    model = Joined() if isinstance(x, dict) else ocar.make_model("mlp", image_shape=_shape(x))
    learner = ocar.ER(model, lr=0.05, memory=20)
    held = [(x, y)]
    stream = IterableStream(reader, batch_size=BATCH, validation=held, test=held)
    *_, finished = evaluate(learner, stream, online=True)
    assert isinstance(finished, Finished)
    assert learner.batches == ROWS // BATCH
    if name == "csv":
        found = ocar.suggest(model, reader, method="er", trials=2, memory=20, progress=False)
        assert found.length == -(-ROWS // BATCH)


def _shape(x: Tensor) -> Any:
    return (1, 1, *x.shape[1:])[-3:]


class Joined(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(60, 4)
        self.head = torch.nn.Linear(6, 2)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        return self.head(torch.cat([self.words(ids).mean(1), numbers], dim=1))


@pytest.mark.parametrize("name", ["a[1].parquet", "a*.parquet", "~", "year=3/a.parquet"])
def test_the_name_of_a_parquet_file_is_no_pattern(name: str, tmp_path: Path) -> None:
    (tmp_path / "year=3").mkdir()
    write_parquet(tmp_path / "ab.parquet", rows()[:9])
    reader = ParquetReader(write_parquet(tmp_path / name, rows()[9:]), x="list", y="y")
    assert sum(len(y) for _, y in reader) == ROWS - 9
    (x, _), *_ = reader
    assert x[0].tolist() == rows()[9]["list"]


def test_parquet_by_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow.parquet")
    path = write_parquet(tmp_path / "a", rows())
    by_polars = list(ParquetReader(path, **LISTS).read({"row": 23}))
    monkeypatch.setitem(sys.modules, "polars", None)
    by_pyarrow = list(ParquetReader(path, **LISTS).read({"row": 23}))
    for ((x, y), place), ((x_other, y_other), place_other) in zip(
        by_polars, by_pyarrow, strict=True
    ):
        assert equal(as_samples(x), as_samples(x_other))
        assert torch.equal(y, y_other)
        assert place == place_other


def test_names_of_classes_may_be_numbers() -> None:
    table = [{"x": 1, "y": 7}, {"x": 1, "y": 3}]
    ((_, y),) = TableReader(table, x="x", y="y", classes=[3, 7])  # type: ignore[list-item]
    assert y.tolist() == [1, 0]


def test_a_list_of_a_function_is_one_array() -> None:
    rows_of_lists = [{"a": 1.0, "y": 0}, {"a": 2.0, "y": 1}]
    ((x, y),) = TableReader(
        rows_of_lists, x=lambda row: [row["a"], 3, 4.5], y=lambda row: [row["a"], -row["a"]]
    )
    assert x.tolist() == [[1, 3, 4.5], [2, 3, 4.5]]
    assert y.tolist() == [[1, -1], [2, -2]]
    assert (x.dtype, y.dtype) == (torch.float32, torch.float32)


def test_decimals_are_numbers(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    polars.DataFrame({"a": [Decimal("1.5")], "y": [0]}).write_parquet(tmp_path / "a")
    ((x, _),) = ParquetReader(tmp_path / "a", x="a", y="y")
    assert x.tolist() == [[1.5]]


# --- a kill --------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys, torch, ocar
from pathlib import Path
from ocar.streams import CSVReader, IterableStream

folder, stop = Path(sys.argv[1]), int(sys.argv[2])
def model(): return ocar.make_model("mlp", image_shape=(1, 1, 3), seed=0)
reader = CSVReader(folder / "data.csv", x=["a", "b", "c"], y="y", batch_size=5)
stream = IterableStream(reader)
if (folder / "learner").exists():
    learner = ocar.load(folder / "learner", model())
    stream.load_state_dict(json.loads((folder / "place").read_text()))
else:
    learner = ocar.OCAR(model(), memory=20)
for batch in stream:
    learner.learn(batch.x, batch.y)
    learner.save(folder / "learner")
    (folder / "place").write_text(json.dumps(stream.state_dict()))
    if batch.index == stop:
        os.kill(os.getpid(), 9)
torch.save(learner.model.state_dict(), folder / "weights")
"""


def test_a_killed_process_goes_on_to_the_bit(tmp_path: Path) -> None:
    weights = []
    for name, stops in (("whole", [-1]), ("killed", [4, -1])):
        folder = tmp_path / name
        folder.mkdir()
        write_csv(folder / "data.csv", rows())
        for stop in stops:
            command = [sys.executable, "-c", SCRIPT, str(folder), str(stop)]
            done = subprocess.run(command, env=os.environ, capture_output=True, check=False)
            killed = -signal.SIGKILL if stop >= 0 else 0
            assert done.returncode == killed, done.stderr.decode()
        weights.append(torch.load(folder / "weights", weights_only=True))
    assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])
