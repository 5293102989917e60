"""Readers of loaders, tables, files and queues: what they give, also after a kill."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tarfile
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

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
    read_confluent,
    read_kafka_python,
    read_queue,
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


# --- messages ------------------------------------------------------------------------------------


def decoded(value: bytes) -> tuple[Any, int]:
    number = int(value)
    return np.array([number, number % 3], dtype=np.float32), number % 4


def test_items_of_a_queue() -> None:
    items: queue.Queue[bytes] = queue.Queue()

    def produce() -> None:
        for number in range(23):
            items.put(b"%d" % number)

    thread = threading.Thread(target=produce)
    thread.start()
    reader = read_queue(items, decoded, batch_size=5, timeout=0.2)
    found = [(x[:, 0].tolist(), y.tolist()) for x, y in reader]
    thread.join()
    assert [n for x, _ in found for n in x] == list(range(23))
    assert [len(y) for _, y in found] == [5, 5, 5, 5, 3]
    with pytest.raises(CheckpointError, match="their source cannot seek"):
        next(reader.read({"queue": 3}))
    with pytest.raises(InputError, match="MessageReader can be read only once"):
        ocar.suggest(ocar.make_model("mlp", image_shape=(1, 1, 2)), reader)


class Topic:
    """Two partitions of a topic, and what a group has committed."""

    def __init__(self, count: int = 30) -> None:
        numbers = [b"%d" % i for i in range(count)]
        self.logs = {0: numbers[: 2 * count // 3], 1: numbers[2 * count // 3 :]}
        self.committed: dict[int, int] = {}

    def start(self) -> dict[int, int]:
        return {p: self.committed.get(p, 0) for p in self.logs}


def _error(code: int) -> Any:
    error = SimpleNamespace(code=lambda: code)
    return SimpleNamespace(error=lambda: error)


class Confluent:
    """The part of ``confluent_kafka.Consumer`` that is used."""

    def __init__(self, topic: Topic, *, broken: bool = False) -> None:
        self.topic, self.at, self.subscribed = topic, topic.start(), True
        self.ended: set[int] = set()
        self.broken = broken

    def poll(self, timeout: float) -> Any:
        if self.broken:
            return _error(1)
        for partition, offset in self.at.items():
            log = self.topic.logs[partition]
            if offset < len(log):
                self.at[partition] += 1
                return self._message(partition, offset, log[offset])
            if partition not in self.ended:
                self.ended.add(partition)
                return _error(-191)
        return None

    @staticmethod
    def _message(partition: int, offset: int, value: bytes) -> Any:
        fields = {"topic": "t", "partition": partition, "offset": offset, "value": value}
        return SimpleNamespace(
            error=lambda: None, **{k: (lambda v=v: v) for k, v in fields.items()}
        )

    def unsubscribe(self) -> None:
        self.subscribed = False

    def list_topics(self, topic: str) -> Any:
        found = SimpleNamespace(partitions=dict.fromkeys(self.topic.logs))
        return SimpleNamespace(topics={topic: found})

    def assign(self, parts: list[Any]) -> None:
        assert not self.subscribed
        start = self.topic.start()
        self.at = {p.partition: p.offset if p.offset >= 0 else start[p.partition] for p in parts}

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        assert not asynchronous
        self.topic.committed |= {part.partition: part.offset for part in offsets}


class Kafka:
    """The part of ``kafka.KafkaConsumer`` that is used."""

    def __init__(self, topic: Topic) -> None:
        self.topic, self.at, self.subscribed = topic, topic.start(), True

    def poll(self, *, timeout_ms: int, max_records: int) -> Any:
        assert max_records == 1
        for partition, offset in self.at.items():
            log = self.topic.logs[partition]
            if offset < len(log):
                self.at[partition] += 1
                record = SimpleNamespace(
                    topic="t", partition=partition, offset=offset, value=log[offset]
                )
                return {("t", partition): [record]}
        return {}

    def unsubscribe(self) -> None:
        self.subscribed = False

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(self.topic.logs)

    def assign(self, parts: list[Any]) -> None:
        assert not self.subscribed
        self.at = {part.partition: self.topic.start()[part.partition] for part in parts}

    def seek(self, part: Any, offset: int) -> None:
        self.at[part.partition] = offset

    def commit(self, offsets: dict[Any, Any]) -> None:
        self.topic.committed |= {p.partition: o.offset for p, o in offsets.items()}


CLIENTS = {"confluent": (Confluent, read_confluent), "kafka-python": (Kafka, read_kafka_python)}
EVERY_CLIENT = pytest.mark.parametrize("client", CLIENTS)


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients are there, as far as they are used."""
    part = namedtuple("TopicPartition", "topic partition offset", defaults=(-1001,))
    confluent: Any = ModuleType("confluent_kafka")
    confluent.TopicPartition = part
    confluent.KafkaError = SimpleNamespace(_PARTITION_EOF=-191)
    structs: Any = ModuleType("kafka.structs")
    structs.TopicPartition = namedtuple("TopicPartition", "topic partition")
    structs.OffsetAndMetadata = namedtuple("OffsetAndMetadata", "offset metadata leader_epoch")
    monkeypatch.setitem(sys.modules, "confluent_kafka", confluent)
    monkeypatch.setitem(sys.modules, "kafka", ModuleType("kafka"))
    monkeypatch.setitem(sys.modules, "kafka.structs", structs)


def consume(client: str, topic: Topic) -> IterableStream:
    kind, read = CLIENTS[client]
    return IterableStream(read(kind(topic), decoded, batch_size=4, timeout=0.0))


@EVERY_CLIENT
def test_each_message_is_learned_once_after_a_kill(client: str) -> None:
    """The place is saved with the learner: what the broker has committed does not matter."""
    whole = list(consume(client, Topic()))
    numbers = [n for batch in whole for n in batch.x[:, 0].tolist()]
    assert numbers == list(range(30))
    for killed in range(1, len(whole) + 1):
        topic = Topic()
        stream, again = consume(client, topic), consume(client, topic)
        for _ in itertools.islice(stream, killed):
            pass
        again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        rest = list(again)
        assert all(map(same, rest, whole[killed:]))
        assert len(rest) == len(whole) - killed


@EVERY_CLIENT
def test_commits_are_offsets_of_what_was_learned(client: str) -> None:
    topic = Topic()
    kind, read = CLIENTS[client]
    reader = read(kind(topic), decoded, batch_size=4, timeout=0.0)
    *_, ((x, _), place) = itertools.islice(reader.read(), 6)
    last = int(x[-1, 0])
    reader.commit(place)
    assert topic.committed == {0: 20, 1: last - 19}
    rest = list(consume(client, topic))
    assert rest[0].x[0, 0] == last + 1


@EVERY_CLIENT
def test_a_message_that_cannot_be_decoded_is_named(client: str) -> None:
    topic = Topic()
    topic.logs[0][6] = b"seven"
    with pytest.raises(DataError, match="Message 6 of t/0 cannot be decoded: invalid literal"):
        list(consume(client, topic))


def test_errors_of_kafka_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = read_confluent(Confluent(Topic(), broken=True), decoded)
    with pytest.raises(DataError, match="Kafka: "):
        next(reader)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingPackageError, match="pip install confluent-kafka"):
        read_confluent(None, decoded)
    monkeypatch.setitem(sys.modules, "kafka.structs", None)
    with pytest.raises(MissingPackageError, match="pip install kafka-python"):
        read_kafka_python(None, decoded)


def test_messages_come_once() -> None:
    stream = consume("confluent", Topic())
    list(stream)
    with pytest.raises(InputError, match="Task 0 is an exhausted iterator"):
        stream.training(0)
    stream.reset()
    with pytest.raises(InputError, match="Task 0 is an exhausted iterator"):
        list(stream)


# --- errors --------------------------------------------------------------------------------------


def test_wrong_fields_are_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", rows())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"x": ["a", "z"], "y": "y"}, "Row 0 has no field 'z'. It has a, b, c, kind, y."),
        ({"x": ["a"], "y": "kind"}, "Row 0: invalid literal for int"),
        ({"x": ["a"], "y": "kind", "classes": ("cow",)}, "Must be one of cow."),
        ({"x": ["kind"], "y": "y"}, "could not convert string to float"),
        ({"x": ["a"], "y": "a"}, "Row 0: invalid literal for int"),
    ]
    for fields, message in wrong:
        with pytest.raises(DataError, match=message):
            list(CSVReader(path, **fields))
    with pytest.raises(DataError, match=r"label 0\.5\. Must be an integer"):
        list(TableReader([{"x": [1.0], "y": 0.5}], x="x", y="y"))
    with pytest.raises(DataError, match=r"Row 1: label '9{30}'\. Must be an integer from 0"):
        list(TableReader([{"x": [1], "y": 1}, {"x": [1], "y": "9" * 30}], x="x", y="y"))
    ragged = [{"x": [1, 2], "y": 0}, {"x": [1], "y": 0}]
    with pytest.raises(InputError, match="Sequences must all have one length"):
        list(TableReader(ragged, x="x", y="y"))
    with pytest.raises(DataError, match="lists of several lengths"):
        list(TableReader([{"x": [[1, 2], [1]], "y": 0}], x="x", y="y"))
    with pytest.raises(ConfigError, match="Invalid batch_size=0"):
        TableReader([], x="x", y="y", batch_size=0)
    with pytest.raises(ConfigError, match="Invalid table int"):
        TableReader(3, x="x", y="y")
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
    with pytest.raises(DataError, match=r"field 'bin' is not read\. Give decoders="):
        list(TarReader(odd, x="bin", y="cls"))
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}]), allow_pickle=True)
    bad = write_tar(tmp_path / "c.tar", {"0.npy": pickled.getvalue(), "0.cls": b"1"})
    with pytest.raises(DataError, match=r"c\.tar/0\.npy: cannot create an OBJECT array"):
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
