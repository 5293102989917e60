"""Streams: the batches of one task after another, with held-out data and a position."""

from ocar.streams.arrays import ArrayStream, TaskArrays
from ocar.streams.base import StreamBatch, TaskStream
from ocar.streams.benchmarks import BENCHMARKS, Benchmark, get_benchmark, make_stream
from ocar.streams.convex import ConvexStream
from ocar.streams.forecast import ForecastBatch, ForecastStream
from ocar.streams.iterable import IterableStream
from ocar.streams.split import ClassIncremental, DomainIncremental

__all__ = [
    "BENCHMARKS",
    "ArrayStream",
    "Benchmark",
    "ClassIncremental",
    "ConvexStream",
    "DomainIncremental",
    "ForecastBatch",
    "ForecastStream",
    "IterableStream",
    "StreamBatch",
    "TaskArrays",
    "TaskStream",
    "get_benchmark",
    "make_stream",
]
