"""Streams: tasks one after another, in batches, with held-out data and a place to go on from."""

from ocar.streams.arrays import ArrayStream, TaskArrays
from ocar.streams.base import StreamBatch, TaskStream
from ocar.streams.benchmarks import BENCHMARKS, Benchmark, get_benchmark, make_stream
from ocar.streams.convex import ConvexStream
from ocar.streams.domains import DomainIncremental
from ocar.streams.iterable import IterableStream
from ocar.streams.split import ClassIncremental

__all__ = [
    "BENCHMARKS",
    "ArrayStream",
    "Benchmark",
    "ClassIncremental",
    "ConvexStream",
    "DomainIncremental",
    "IterableStream",
    "StreamBatch",
    "TaskArrays",
    "TaskStream",
    "get_benchmark",
    "make_stream",
]
