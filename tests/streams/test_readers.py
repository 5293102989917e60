"""Readers of loaders, tables, files and queues: what they give, also after a kill."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import ocar
from ocar.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    InputError,
    MissingPackageError,
    OcarError,
)
from ocar.evaluate import Finished, evaluate
from ocar.streams import (
    CSVReader,
    IterableStream,
    LoaderReader,
    ParquetReader,
    TableReader,
    TarReader,
)
from ocar.streams.readers import Reader
from ocar.structure import equal

ROWS, BATCH = 47, 5
"""Rows that are read; the last batch is short."""


def rows() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(ROWS, 3, generator=generator)
    return [
        {
            "a": a,
            "b": b,
            "c": c,
            "list": [i, i + 1, i % 7],
            "kind": "cat" if a > 0 else "dog",
            "y": i % 4,
        }
        for i, (a, b, c) in enumerate(values.tolist())
    ]


def write_csv(path: Path, some: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in some[0] if name != "list"])
        writer.writeheader()
        writer.writerows({k: v for k, v in row.items() if k != "list"} for row in some)
    return path


def write_parquet(path: Path, some: list[dict[str, Any]]) -> Path:
    polars = pytest.importorskip("polars")
    polars.DataFrame(some).write_parquet(path, row_group_size=10)
    return path


def picture(i: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_tar(path: Path, samples: dict[str, bytes]) -> Path:
    if path.exists():
        return path
    with tarfile.open(path, "w") as tar:
        for name, data in samples.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def write_shards(folder: Path) -> list[Path]:
    paths = []
    for shard, first in enumerate((0, 20, 33)):
        names: dict[str, bytes] = {}
        for i in range(first, (20, 33, ROWS)[shard]):
            names |= {f"d/{i:03}.png": picture(i), f"d/{i:03}.cls": f"{i % 4}\n".encode()}
        paths.append(write_tar(folder / f"{shard}.tar", names))
    return paths


class Huge(IterableDataset[Any]):
    """A data set without an index."""

    def __iter__(self) -> Iterator[Any]:
        return ((torch.tensor([row["a"], row["b"]]), row["y"]) for row in rows())


class Batches(Dataset[Any]):
    """A data set whose items are batches."""

    def __len__(self) -> int:
        return -(-ROWS // BATCH)

    def __getitem__(self, index: int) -> Any:
        some = rows()[BATCH * index : BATCH * (index + 1)]
        return torch.tensor([[row["a"]] for row in some]), torch.tensor([row["y"] for row in some])


class Columns(list[Any]):
    """As ``datasets.Dataset``: a slice is a dictionary of columns."""

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return {name: [row[name] for row in part] for name in part[0]} if part else {}


class Skipped:
    """As ``datasets.IterableDataset``."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def __iter__(self) -> Iterator[Any]:
        return iter(rows()[self.start :])

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def skip(self, n: int) -> Skipped:
        return Skipped(self.start + n)


def loader(**options: Any) -> LoaderReader:
    values = torch.tensor([[row["a"], row["b"], row["c"]] for row in rows()])
    data = TensorDataset(values, torch.tensor([row["y"] for row in rows()]))
    return LoaderReader(DataLoader(data, batch_size=BATCH, **options), seed=3)


NUMBERS: dict[str, Any] = {"x": ["a", "b", "c"], "y": "y", "batch_size": BATCH}
LISTS: dict[str, Any] = {"x": {"ids": "list", "numbers": ["a", "b"]}, "y": "y", "batch_size": BATCH}

READERS: dict[str, Callable[[Path], Reader]] = {
    "loader": lambda folder: loader(),
    "shuffled loader": lambda folder: loader(shuffle=True),
    "loader with a generator": lambda folder: loader(shuffle=True, generator=torch.Generator()),
    "loader of whole batches": lambda folder: LoaderReader(
        DataLoader(Batches(), batch_size=None, shuffle=True)
    ),
    "iterable loader": lambda folder: LoaderReader(DataLoader(Huge(), batch_size=BATCH)),
    "rows": lambda folder: TableReader(rows(), **LISTS),
    "columns": lambda folder: TableReader(Columns(rows()), **LISTS),
    "skipped rows": lambda folder: TableReader(Skipped(), **LISTS),
    "csv": lambda folder: CSVReader(write_csv(folder / "one.csv", rows()), **NUMBERS),
    "two csv": lambda folder: CSVReader(
        [write_csv(folder / "1.csv", rows()[:13]), write_csv(folder / "2.csv", rows()[13:])],
        **NUMBERS,
    ),
    "parquet": lambda folder: ParquetReader(write_parquet(folder / "one.parquet", rows()), **LISTS),
    "two parquet": lambda folder: ParquetReader(
        [write_parquet(folder / "1", rows()[:13]), write_parquet(folder / "2", rows()[13:])],
        **LISTS,
    ),
    "tar": lambda folder: TarReader(
        write_shards(folder), x="png", y="cls", image_size=8, batch_size=BATCH
    ),
}

EVERY_READER = pytest.mark.parametrize("name", READERS)


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
    assert equal(_inputs(x), _inputs(pairs[6][0][0]))
    assert torch.equal(torch.as_tensor(y), torch.as_tensor(pairs[6][0][1]))


def _inputs(x: Any) -> Any:
    return ocar.structure.as_samples(x)


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


# --- errors --------------------------------------------------------------------------------------


def test_wrong_fields_are_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", rows())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"x": ["a", "z"], "y": "y"}, "line 2 has no field 'z'. It has a, b, c, kind, y."),
        ({"x": ["a"], "y": "kind"}, "line 2: field 'kind' is '(cat|dog)'. Must be an integer"),
        ({"x": ["a"], "y": "kind", "classes": ("cow",)}, "Must be one of cow."),
        ({"x": ["kind"], "y": "y"}, "line 2: field 'kind' is '(cat|dog)'. Must be a number"),
        ({"x": ["a"], "y": "a"}, "line 2: field 'a' is .*. Must be an integer"),
    ]
    for fields, message in wrong:
        with pytest.raises(DataError, match=message):
            list(CSVReader(path, **fields))
    with pytest.raises(DataError, match=r"Row 0: field 'y' is 0\.5\. Must be an integer"):
        list(TableReader([{"x": [1.0], "y": 0.5}], x="x", y="y"))
    with pytest.raises(
        DataError, match=r"Row 1: field 'y' is '9+\.\.\.9+'\. Must be an integer from 0"
    ):
        list(TableReader([{"x": [1], "y": 1}, {"x": [1], "y": "9" * 30}], x="x", y="y"))
    ragged = [{"x": [1, 2], "y": 0}, {"x": [1], "y": 0}]
    with pytest.raises(InputError, match="Sequences must all have one length"):
        list(TableReader(ragged, x="x", y="y"))
    with pytest.raises(DataError, match="Must be numbers, without empty ones"):
        list(TableReader([{"x": [[1, 2], [1]], "y": 0}], x="x", y="y"))
    with pytest.raises(ConfigError, match="Invalid batch_size=0"):
        TableReader([], x="x", y="y", batch_size=0)
    with pytest.raises(ConfigError, match="Invalid table int"):
        TableReader(3, x="x", y="y")
    with pytest.raises(ConfigError, match=r"Invalid table dict\. Must have a length and slices"):
        TableReader({"a": [1]}, x="a", y="a")
    with pytest.raises(ConfigError, match=r"Invalid classes=\('a', 'a'\)\. Must be different"):
        TableReader([], x="x", y="y", classes=["a", "a"])
    with pytest.raises(ConfigError, match="Must be at least one file"):
        CSVReader([], x="x", y="y")


BROKEN: dict[str, tuple[type[Reader], bytes, str]] = {
    "no csv": (CSVReader, b"a,y\n1,\xff\n", "Cannot read"),
    "short row": (CSVReader, b"a,y\n1\n", "line 2: it must have a value for each of 2 columns"),
    "long row": (CSVReader, b"a,y\n1,2,3\n", "line 2: it must have a value for each of 2 columns"),
    "quotes": (CSVReader, b'a,y\n"1', "Cannot read"),
    "no parquet": (ParquetReader, b"PAR1nonsense", "Cannot read"),
    "no tar": (TarReader, b"nonsense" * 200, "Cannot read"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(name: str, tmp_path: Path) -> None:
    kind, data, message = BROKEN[name]
    if kind is ParquetReader:
        pytest.importorskip("polars")
    path = tmp_path / "broken file"
    path.write_bytes(data)
    reader: Any = kind
    with pytest.raises(DataError, match=message) as found:
        list(reader(path, x=["a"], y="y"))
    assert "broken file" in str(found.value)
    with pytest.raises(DataError, match="missing"):
        list(reader(tmp_path / "missing", x=["a"], y="y"))


def test_a_broken_shard_is_named(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "a.tar", {"0.png": picture(0), "0.cls": b"1"})
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[:600])
    fields: dict[str, Any] = {"x": "png", "y": "cls", "image_size": 8}
    with pytest.raises(OcarError, match=r"cut\.tar"):
        list(TarReader(cut, **fields))
    with pytest.raises(DataError, match=r"no field 'jpg'\. It has png, cls"):
        list(TarReader(whole, x="jpg", y="cls"))
    odd = write_tar(tmp_path / "b.tar", {"0.bin": b"1", "0.cls": b"1"})
    with pytest.raises(
        DataError, match=r"b\.tar, sample '0': cannot read 0\.bin: .*Give decoders="
    ):
        list(TarReader(odd, x="bin", y="cls"))
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}]), allow_pickle=True)
    bad = write_tar(tmp_path / "c.tar", {"0.npy": pickled.getvalue(), "0.cls": b"1"})
    with pytest.raises(
        DataError, match=r"c\.tar, sample '0': cannot read 0\.npy: cannot create an OBJECT"
    ):
        list(TarReader(bad, x="npy", y="cls"))


@pytest.mark.parametrize("place", [{"row": -1}, {"other": 3}, {"row": 1.5}, {}])
def test_a_wrong_place_is_refused(place: Any) -> None:
    with pytest.raises(CheckpointError, match="Must be row, 0 or more"):
        list(TableReader(rows(), **NUMBERS).read(place))


@pytest.mark.parametrize(
    "state",
    [
        {"position": 3, "task": 9},
        {"position": 3, "place.row": 3},
        {"position": 3, "task": 1, "place.row": 3},
        {"task": 0, "place.row": 3},
    ],
)
def test_a_state_of_other_tasks_is_refused(state: Any) -> None:
    stream = IterableStream(TableReader(rows(), **NUMBERS), list(TableReader(rows(), **NUMBERS)))
    with pytest.raises(CheckpointError, match="Invalid stream"):
        stream.load_state_dict(state)


def test_parquet_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("polars", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match="pip install polars"):
        ParquetReader("a", x="x", y="y")


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
        assert equal(_inputs(x), _inputs(x_other))
        assert torch.equal(y, y_other)
        assert place == place_other


# --- what is no pair, and what waits -------------------------------------------------------------

TENSOR, LABELS = torch.zeros(2, 3), torch.tensor([0, 1])
NO_PAIR: dict[str, tuple[Any, str]] = {
    "one tensor of two rows": (TENSOR, "is a Tensor. Must be a pair (x, y)"),
    "triple": ((TENSOR, LABELS, LABELS), "is a tuple of 3 parts. Must be a pair (x, y)"),
    "one in a list": ([TENSOR], "is a list of 1 parts. Must be a pair (x, y)"),
    "string": ("ab", "is a str. Must be a pair (x, y)"),
    "dictionary": ({"x": TENSOR, "y": LABELS}, "is a dict. Must be a pair (x, y)"),
    "labels of text": ((TENSOR, ["a", "b"]), ", its y: too many dimensions 'str'. Must be a pair"),
    "samples of text": ((("a", "b"), LABELS), ", its x: too many dimensions 'str'. Must be a pair"),
    "complex labels": ((TENSOR, LABELS.cfloat()), ", its y: it has torch.complex64. Must be"),
}


@pytest.mark.parametrize("name", NO_PAIR)
@pytest.mark.parametrize("by_reader", [False, True])
def test_what_is_no_pair_is_refused(name: str, by_reader: bool) -> None:
    given, message = NO_PAIR[name]
    batches: Any = [(TENSOR, LABELS), given]
    if by_reader:
        batches = LoaderReader(DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch))
    stream = iter(IterableStream(batches))
    with pytest.raises(InputError) as caught:
        list(stream)
    where, _, rest = str(caught.value).partition(message)
    assert where.strip() in ("Batch 1", "Batch 1 of the loader")
    assert rest.endswith("y of integer labels or floating-point targets.")


def test_labels_are_arrays_of_any_layout_without_a_mask() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.array([0, 1])
    (batch,) = IterableStream([(x[::-1], y[::-1])])
    assert torch.equal(batch.y, torch.tensor([1, 0]))
    assert torch.equal(_inputs(batch.x), torch.tensor(x[::-1].copy()))
    with pytest.raises(InputError, match="Batch 0: y must have no mask, which would be lost"):
        list(IterableStream([(x, np.ma.masked_array(y, y > 0))]))


def test_other_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="The validation data of task 1 is a Tensor"):
        IterableStream([], [], validation=[(TENSOR, LABELS), TENSOR])
    with pytest.raises(ConfigError, match=r"Invalid task 1: int\. Must be iterable"):
        IterableStream([], 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Invalid loader list. Must be a torch.*DataLoader"):
        LoaderReader([(TENSOR, LABELS)])  # type: ignore[arg-type]


@pytest.mark.parametrize("label", [np.inf, 10**400, np.array([1, 2]), np.nan], ids=range(4))
def test_what_is_no_label_is_named_with_its_row(label: Any) -> None:
    with pytest.raises(DataError, match=r"Row 1: field 'y' is .*\. Must be an integer from 0"):
        list(TableReader([{"x": 1, "y": 0}, {"x": 1, "y": label}], x="x", y="y"))
    with pytest.raises(DataError, match=r"Row 0: field 'x' is .*\. Must be a number"):
        list(TableReader([{"x": 10**400, "y": 0}], x=["x"], y="y"))


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


def inverse(row: Any) -> float:
    return 1 / float(row["b"])


def text_or_number(row: Any) -> Any:
    return 1.0 if row["b"] == "2" else row["b"]


WRONG_VALUES: dict[str, tuple[str, dict[str, Any], str]] = {
    "empty": ("", {}, "field 'b' is empty. Must be a number."),
    "text": ("x", {}, "field 'b' is 'x'. Must be a number."),
    "label": ("1.5", {"x": ["a"], "y": "b"}, "field 'b' is '1.5'. Must be an integer from 0 to 2"),
    "no label": ("", {"x": ["a"], "y": "b"}, "field 'b' is empty. Must be an integer from 0 to 2"),
    "no class": ("3", {"x": ["a"], "y": "b", "classes": "12"}, "field 'b' is '3'. Must be one of "),
    "a function": ("0", {"x": inverse}, "a function of the record raised ZeroDivisionError: "),
    "no number": ("q", {"x": text_or_number}, "a function of the record returned 'q'. Must be a "),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_value_is_named_with_its_file_and_line(name: str, tmp_path: Path) -> None:
    value, fields, message = WRONG_VALUES[name]
    paths = [tmp_path / "good.csv", tmp_path / "bad.csv"]
    for path, text in zip(paths, ("a,b\n1,2\n", f"a,b\n1,2\n1,{value}\n"), strict=True):
        path.write_text(text)
    reader = CSVReader(paths, **{"x": ["a", "b"], "y": "a", "batch_size": 1, **fields})
    with pytest.raises(DataError) as caught:
        list(reader)
    assert str(caught.value).startswith(f"{paths[1]}, line 3: {message}")


@pytest.mark.parametrize("name", ["x", "part of x", "y", "class"])
def test_a_null_of_parquet_is_named_with_its_file_and_row(name: str, tmp_path: Path) -> None:
    good = {"a": [1.0, 2.0], "l": [[1, 2], [3, 4]], "y": [0, 1], "c": ["a", "b"]}
    null = {"a": [1.0, None], "l": [[1, 2], [3, None]], "y": [0, None], "c": ["None", None]}
    polars = pytest.importorskip("polars")
    paths = [tmp_path / "good.parquet", tmp_path / "null.parquet"]
    for path, table in zip(paths, (good, null), strict=True):
        polars.DataFrame(table).write_parquet(path)
    field, options = {
        "x": ("a", {"x": ["a"], "y": lambda row: 0}),
        "part of x": ("l", {"x": "l", "y": lambda row: 0}),
        "y": ("y", {"x": lambda row: 0.0, "y": "y"}),
        "class": ("c", {"x": lambda row: 0.0, "y": "c", "classes": ("a", "b", "None")}),
    }[name]
    shown = "is [3, None]" if name == "part of x" else "is empty"
    with pytest.raises(DataError) as caught:
        list(ParquetReader(paths, **options))
    assert str(caught.value).startswith(f"{paths[1]}, row 1: field {field!r} {shown}. Must be ")


def test_decimals_are_numbers(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    polars.DataFrame({"a": [Decimal("1.5")], "y": [0]}).write_parquet(tmp_path / "a")
    ((x, _),) = ParquetReader(tmp_path / "a", x="a", y="y")
    assert x.tolist() == [[1.5]]


def test_a_damaged_shard_does_not_end_early(tmp_path: Path) -> None:
    """tarfile takes a damaged header after the first for the end of the file."""
    samples = {f"{i}.{kind}": data for i in range(4) for kind, data in TWO.items()}
    path = write_tar(tmp_path / "a.tar", samples)
    data = bytearray(path.read_bytes())
    start = data.index(b"2.cls\0")
    data[start + 148 : start + 156] = b"\xff" * 8  # the checksum
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"a\.tar: at byte {start} is neither a file nor the end"):
        list(TarReader(path, x="txt", y="cls"))


TWO = {"txt": b"1", "cls": b"0"}
MEMBERS: dict[str, tuple[dict[str, bytes], str]] = {
    "picture": ({"png": b"nonsense"}, "cannot read d/1.png: its 8 bytes are no image"),
    "array": ({"npy": b"\x93NUMPY\x09\x00"}, "cannot read d/1.npy: version (9, 0) of the npy"),
    "json": ({"json": b"{"}, "cannot read d/1.json: Expecting property name"),
    "label": ({"cls": b"cat"}, "field 'cls' is 'cat'. Must be an integer"),
    "no label": ({"cls": b""}, "field 'cls' is empty. Must be an integer"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_wrong_member_is_named_with_its_shard(name: str, tmp_path: Path) -> None:
    members, message = MEMBERS[name]
    field = next(iter(members))
    whole = write_tar(tmp_path / "0.tar", {"d/0.cls": b"1", "d/0.txt": b"2"})
    wrong = {f"d/1.{key}": value for key, value in {"cls": b"1", **members}.items()}
    bad = write_tar(tmp_path / "1.tar", wrong)

    def sample(record: Any) -> Any:
        return float(record["txt"]) if "txt" in record else record[field]

    with pytest.raises(DataError) as caught:
        list(TarReader([whole, bad], x=sample if field != "cls" else lambda record: 0.0, y="cls"))
    assert str(caught.value).startswith(f"{bad}, sample 'd/1': {message}")


def test_a_shorter_file_than_before_is_refused(tmp_path: Path) -> None:
    stream = IterableStream(CSVReader(write_csv(tmp_path / "a.csv", rows()), **NUMBERS))
    for _ in itertools.islice(stream, 5):
        pass
    again = IterableStream(CSVReader(write_csv(tmp_path / "a.csv", rows()[:20]), **NUMBERS))
    again.load_state_dict(stream.state_dict())
    with pytest.raises(CheckpointError, match=r"Task 0 ends before the place \{'row': 25\}"):
        next(iter(again))
