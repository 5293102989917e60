"""Streams: the batches of one task after another, with held-out data and a position.

Readers read batches from loaders, tables, files and queues.
"""

from ocar.streams.arrays import ArrayStream, TaskArrays
from ocar.streams.base import StreamBatch, TaskStream
from ocar.streams.benchmarks import BENCHMARKS, Benchmark, get_benchmark, make_stream
from ocar.streams.convex import ConvexStream
from ocar.streams.file_readers import CSVReader, ParquetReader, TarReader
from ocar.streams.forecast import ForecastBatch, ForecastStream
from ocar.streams.iterable import IterableStream
from ocar.streams.messages import MessageReader, read_confluent, read_kafka_python, read_queue
from ocar.streams.readers import LoaderReader, Reader, TableReader
from ocar.streams.split import ClassIncremental, DomainIncremental

__all__ = [
    "BENCHMARKS",
    "ArrayStream",
    "Benchmark",
    "CSVReader",
    "ClassIncremental",
    "ConvexStream",
    "DomainIncremental",
    "ForecastBatch",
    "ForecastStream",
    "IterableStream",
    "LoaderReader",
    "MessageReader",
    "ParquetReader",
    "Reader",
    "StreamBatch",
    "TableReader",
    "TarReader",
    "TaskArrays",
    "TaskStream",
    "get_benchmark",
    "make_stream",
    "read_confluent",
    "read_kafka_python",
    "read_queue",
]
