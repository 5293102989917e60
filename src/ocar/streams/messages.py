"""Batches from a queue of messages, such as a topic of Kafka.

A source is a function that waits for the next message; None is the end. If a source can
seek, its place is the offset of the next message in each partition. A learner and a place that are
saved together resume exactly: each message is learned once.
"""

from __future__ import annotations

import importlib
import itertools
import math
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ocar.config import require
from ocar.errors import CheckpointError, DataError, MissingPackageError
from ocar.streams.readers import Place, Reader, as_array, as_pair, collate

_POLL = 1.0
"""Seconds of one call of a client: an interrupt waits as long."""

Decode = Callable[[Any], tuple[Any, Any]]
"""From the value of a message to a sample and its label."""


class Message(NamedTuple):
    """A message of a source."""

    value: Any
    partition: str  #: Name of what its offset counts in.
    offset: int


class MessageReader(Reader):
    """Batches ``(x, y)`` of messages; it ends when ``receive`` returns None.

    Unlike other readers it gives each batch once. A message that cannot be decoded, or a source
    that fails, raises an error once the messages before have been given. The next call goes on.

    Args:
        receive: Waits for the next message and returns it; None ends the reader.
        decode: From the value of a message to a sample and its label.
        batch_size: Messages in a batch; the last may have fewer.
        seek: Lets the source go on at a place; None if it cannot.
        commit: Tells the source that all messages before a place are done; None if it does not
            care.
    """

    def __init__(
        self,
        receive: Callable[[], Message | None],
        decode: Decode,
        *,
        batch_size: int = 10,
        seek: Callable[[Place], object] | None = None,
        commit: Callable[[Place], object] | None = None,
    ) -> None:
        require("batch_size", batch_size, batch_size >= 1, "at least 1")
        self.batch_size = batch_size
        self._receive, self._decode = receive, decode
        self._seek, self._commit = seek, commit
        self._live: Iterator[tuple[tuple[Any, Any], Place]] | None = None
        self._begun: list[tuple[Message, tuple[Any, Any]]] = []  # a batch that an interrupt ended

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """The reader itself: messages come once."""
        return self

    def __next__(self) -> tuple[Any, Any]:
        """The next batch."""
        self._live = self._live or self.read()
        try:
            pair, _ = next(self._live)
        except StopIteration:
            raise
        except BaseException:
            self._live = None  # a generator that raised would say that this was the end
            raise
        return pair

    def read(self, place: Place | None = None) -> Iterator[tuple[tuple[Any, Any], Place]]:
        """The batches from a place on, by default where the source is, each with the place after.

        Raises:
            CheckpointError: The source cannot seek.
        """
        after = dict(place or {})
        if place:
            if self._seek is None:
                raise CheckpointError(
                    "These messages cannot be read from a place on: their source cannot seek."
                )
            self._seek(place)
            self._begun = []
        messages, failure = map(self._sample, iter(self._receive, None)), None
        while failure is None:
            try:
                for one in itertools.islice(messages, self.batch_size - len(self._begun)):
                    self._begun.append(one)
            except Exception as error:  # noqa: BLE001 (of any client)
                failure = error
            if batch := self._begun:
                self._begun = []
                after |= {message.partition: message.offset + 1 for message, _ in batch}
                where = f"{_called(batch[0][0])} to {_called(batch[-1][0])}: "
                yield collate([sample for _, sample in batch], where), dict(after)
            elif failure is None:
                return
        raise failure

    def commit(self, place: Place) -> None:
        """Tell the source that all before a place is learned and saved."""
        if self._commit is not None:
            self._commit(place)

    def _sample(self, message: Message) -> tuple[Message, tuple[Any, Any]]:
        try:
            x, y = as_pair(self._decode(message.value), "what decode returned")
        except Exception as error:
            raise DataError(f"{_called(message)} cannot be decoded: {error}") from error
        return message, (as_array(x), as_array(y))


def _called(message: Message) -> str:
    return f"Message {message.offset} of {message.partition}"


def read_queue(
    source: queue.Queue[Any],
    decode: Decode,
    *,
    batch_size: int = 10,
    timeout: float | None = None,
) -> MessageReader:
    """The items of a ``queue.Queue``.

    It waits for items, or ends after ``timeout`` seconds without any. It cannot seek.
    """
    _check_timeout(timeout)
    offset = 0

    def receive() -> Message | None:
        nonlocal offset
        try:
            value = source.get(timeout=timeout)
        except queue.Empty:
            return None
        offset += 1
        return Message(value, "queue", offset - 1)

    return MessageReader(receive, decode, batch_size=batch_size)


def read_confluent(
    consumer: Any, decode: Decode, *, batch_size: int = 10, timeout: float | None = None
) -> MessageReader:
    """The messages of a consumer of ``confluent-kafka``.

    It waits for messages, also while brokers cannot be reached, or ends after ``timeout`` seconds
    without any. A consumer that has just subscribed gets none for some seconds.

    To go on from a place, the consumer leaves its subscription and is assigned all partitions of
    the topics in the place; a partition that gave no message yet begins where the group's commits
    or ``auto.offset.reset`` say.
    """
    _check_timeout(timeout)
    kafka = _client("confluent_kafka", "confluent-kafka")

    errors = kafka.KafkaError
    passing = {errors._PARTITION_EOF, errors._TRANSPORT, errors._ALL_BROKERS_DOWN}

    def poll(seconds: float) -> Message | None:
        while (found := consumer.poll(seconds)) is not None:
            if (error := found.error()) is None:
                place = _name(found.topic(), found.partition())
                return Message(found.value(), place, found.offset())
            if error.code() not in passing and not error.retriable():
                raise DataError(f"Kafka: {error}")
        return None

    def parts(place: Place) -> dict[str, Any]:
        return {n: kafka.TopicPartition(*_parse(n), offset) for n, offset in place.items()}

    def seek(place: Place) -> None:
        every = {
            _name(topic, number): kafka.TopicPartition(topic, number)
            for topic in _topics(place)
            for number in _known(topic, consumer.list_topics(topic).topics[topic].partitions)
        }
        consumer.unsubscribe()
        consumer.assign(list({**every, **parts(place)}.values()))

    def commit(place: Place) -> None:
        consumer.commit(offsets=list(parts(place).values()), asynchronous=False)

    receive = partial(_wait, poll, timeout)
    return MessageReader(receive, decode, batch_size=batch_size, seek=seek, commit=commit)


def read_kafka_python(
    consumer: Any, decode: Decode, *, batch_size: int = 10, timeout: float | None = None
) -> MessageReader:
    """The messages of a ``KafkaConsumer`` of ``kafka-python``; else as :func:`read_confluent`."""
    _check_timeout(timeout)
    structs = _client("kafka.structs", "kafka-python")
    TopicPartition, OffsetAndMetadata = structs.TopicPartition, structs.OffsetAndMetadata

    def poll(seconds: float) -> Message | None:
        found = consumer.poll(timeout_ms=round(1000 * seconds), max_records=1)
        for record in (record for records in found.values() for record in records):
            return Message(record.value, _name(record.topic, record.partition), record.offset)
        return None

    def seek(place: Place) -> None:
        parts = {TopicPartition(*_parse(name)): offset for name, offset in place.items()}
        every = [
            TopicPartition(topic, number)
            for topic in _topics(place)
            for number in _known(topic, consumer.partitions_for_topic(topic))
        ]
        consumer.unsubscribe()
        consumer.assign(list(dict.fromkeys([*every, *parts])))
        for part, offset in parts.items():
            consumer.seek(part, offset)

    def commit(place: Place) -> None:
        size = len(OffsetAndMetadata._fields)  # newer versions have the epoch of the leader
        offsets = {
            TopicPartition(*_parse(name)): OffsetAndMetadata(*(offset, "", -1)[:size])
            for name, offset in place.items()
        }
        consumer.commit(offsets)

    receive = partial(_wait, poll, timeout)
    return MessageReader(receive, decode, batch_size=batch_size, seek=seek, commit=commit)


def _client(module: str, package: str) -> Any:
    """A module of a client; the error says how to install its package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(f"This reader needs {package}: pip install {package}") from error


def _check_timeout(timeout: float | None) -> None:
    valid = timeout is None or timeout >= 0
    require("timeout", timeout, valid, "seconds, 0 or more, or None to wait")


def _wait(poll: Callable[[float], Message | None], timeout: float | None) -> Message | None:
    """The next message; None if a number of seconds has passed without any."""
    end = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        message = poll(max(0.0, min(_POLL, left)))
        if message is not None or left <= 0:
            return message


def _known(topic: str, partitions: Iterable[int] | None) -> Iterable[int]:
    """The partitions of a topic; reading only some would lose messages."""
    if not partitions:
        raise DataError(f"Kafka has no topic {topic!r}, or cannot be reached.")
    return partitions


def _name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def _topics(place: Place) -> list[str]:
    return sorted({_parse(name)[0] for name in place})


def _parse(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("/")
    if not topic or not partition.isdigit():
        raise CheckpointError(f"Invalid place {name!r}. Must be topic/partition.")
    return topic, int(partition)
