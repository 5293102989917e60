"""Readers of messages: what they give, also after a kill, and while nothing comes."""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ocar
from ocar.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    InputError,
    MissingPackageError,
)
from ocar.streams import (
    IterableStream,
    MessageReader,
    read_confluent,
    read_kafka_python,
    read_queue,
)
from ocar.streams.messages import Message


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
    error = SimpleNamespace(code=lambda: code, retriable=lambda: code == 5)
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
    confluent.KafkaError = SimpleNamespace(
        _PARTITION_EOF=-191, _TRANSPORT=-195, _ALL_BROKERS_DOWN=-187
    )
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
        for mine, theirs in zip(rest, whole[killed:], strict=True):
            assert torch.equal(mine.x, theirs.x)
            assert torch.equal(mine.y, theirs.y)


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


@EVERY_CLIENT
def test_an_idle_topic_is_waited_for(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that joins a group gets nothing at first, and nothing comes now and then."""
    kind, read = CLIENTS[client]
    consumer, calls = kind(Topic()), itertools.count()
    poll = consumer.poll

    def often_idle(*args: Any, **options: Any) -> Any:
        idle = next(calls) % 50
        return poll(*args, **options) if idle == 49 else ({} if options else None)

    monkeypatch.setattr(consumer, "poll", often_idle)
    reader = read(consumer, decoded, batch_size=5)
    found = [n for x, _ in itertools.islice(reader, 6) for n in x[:, 0].tolist()]
    assert found == list(range(30))
    assert next(calls) >= 50 * 30


@EVERY_CLIENT
def test_a_topic_ends_after_seconds_without_messages(client: str) -> None:
    kind, read = CLIENTS[client]
    assert sum(len(y) for _, y in read(kind(Topic()), decoded, timeout=0.01)) == 30


@EVERY_CLIENT
def test_nothing_new_after_a_kill_is_the_end(client: str) -> None:
    topic = Topic()
    stream, again = consume(client, topic), consume(client, topic)
    for _ in itertools.islice(stream, 7):
        pass
    topic.logs = {0: topic.logs[0], 1: topic.logs[1][:8]}
    again.load_state_dict(stream.state_dict())
    assert list(again) == []


@EVERY_CLIENT
def test_a_topic_that_is_gone_is_named(client: str) -> None:
    topic = Topic()
    stream, again = consume(client, topic), consume(client, topic)
    next(iter(stream))
    again.load_state_dict(stream.state_dict())
    topic.logs.clear()
    with pytest.raises(DataError, match=r"Kafka has no topic 't', or cannot be reached\."):
        list(again)


@pytest.mark.parametrize("code", [-195, -187, 5])
def test_passing_errors_of_kafka_are_waited_for(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Confluent(Topic())
    poll, failing = consumer.poll, iter([_error(code)] * 3)
    monkeypatch.setattr(consumer, "poll", lambda timeout: next(failing, None) or poll(timeout))
    x, _ = next(read_confluent(consumer, decoded, batch_size=5))
    assert x[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_queue_is_waited_for() -> None:
    items: queue.Queue[bytes] = queue.Queue()
    timer = threading.Timer(0.3, lambda: [items.put(b"%d" % number) for number in range(5)])
    timer.start()
    x, _ = next(read_queue(items, decoded, batch_size=5))
    timer.join()
    assert x[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("given", [torch.zeros(2), (1, 2, 3), "ab"], ids=str)
def test_a_message_that_is_no_pair_is_named(given: Any) -> None:
    items: queue.Queue[bytes] = queue.Queue()
    items.put(b"0")
    with pytest.raises(DataError, match=r"Message 0 of queue cannot be .* Must be a pair"):
        next(read_queue(items, lambda value: given))


def test_a_message_that_cannot_be_decoded_loses_no_other() -> None:
    items: queue.Queue[int] = queue.Queue()
    for number in range(12):
        items.put(number)

    def decode(number: int) -> Any:
        return ([number, 2 * number, 0.5], number % 2) if number % 5 != 3 else 1 // 0

    reader = read_queue(items, decode, batch_size=4, timeout=0)
    found: list[list[float]] = []
    refused = []
    while True:
        try:
            x, _ = next(reader)
        except DataError as error:
            refused.append(str(error))
        except StopIteration:
            break
        else:
            assert torch.equal(x[:, 1], 2 * x[:, 0])
            found.append(x[:, 0].tolist())
    assert found == [[0, 1, 2], [4, 5, 6, 7], [9, 10, 11]]
    assert [said.partition(" of")[0] for said in refused] == ["Message 3", "Message 8"]


@pytest.mark.parametrize(
    ("raised", "batches"),
    [(KeyboardInterrupt, [[0, 1, 2, 3], [4, 5]]), (DataError, [[0, 1], [2, 3, 4, 5]])],
)
def test_a_source_that_fails_loses_no_message(
    raised: type[BaseException], batches: list[list[int]]
) -> None:
    source: Iterator[int | None] = iter([0, 1, None, 2, 3, 4, 5])

    def receive() -> Message | None:
        if (value := next(source, -1)) is None:
            raise raised
        return None if value < 0 else Message(value, "topic", value)

    reader = MessageReader(receive, lambda value: ([value, 0.5], 0), batch_size=4)
    found: list[list[float]] = []
    with pytest.raises(raised):
        found.extend(x[:, 0].tolist() for x, _ in reader)
    found.extend(x[:, 0].tolist() for x, _ in reader)
    assert found == batches


@pytest.mark.parametrize("kind", [dict, tuple])
def test_each_part_of_a_message_may_be_a_list(kind: type) -> None:
    parts = {"a": [[1, 0.5], [2, 0.5]], "b": [[[1]], [[2]]]}
    items: queue.Queue[int] = queue.Queue()
    for number in range(2):
        items.put(number)

    def decode(number: int) -> Any:
        own = {name: rows[number] for name, rows in parts.items()}
        return (own if kind is dict else tuple(own.values())), [0.5, 1.5]

    x, y = next(read_queue(items, decode, batch_size=2))
    for found, rows in zip(x.values() if kind is dict else x, parts.values(), strict=True):
        assert torch.equal(found, torch.tensor(rows))
    assert torch.equal(y, torch.tensor([[0.5, 1.5]] * 2))


def test_messages_that_fit_in_no_batch_are_named() -> None:
    items: queue.Queue[int] = queue.Queue()
    for number in (1, 1, 2):
        items.put(number)
    reader = read_queue(items, lambda number: (torch.ones(number), 0), timeout=0)
    with pytest.raises(InputError, match="Message 0 of queue to Message 2 of queue: Samples can"):
        next(reader)


def test_a_wrong_timeout_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Invalid timeout=-1\. Must be seconds"):
        read_queue(queue.Queue(), decoded, timeout=-1)
