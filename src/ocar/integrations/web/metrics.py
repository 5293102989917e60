"""Metrics for Prometheus: requests are counted as they come, the service is read when asked."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Iterator

import torch
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ocar.service import Service
from ocar.version import __version__

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_EVENTS = ("not_finite", "out_of_scale", "shortened", "copies")
"""What the guard counts."""


class Metrics:
    """The metrics of one application; ``service`` gives None while the service starts."""

    def __init__(self, service: Callable[[], Service | None]) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "ocar_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self.latency = Histogram(
            "ocar_request_duration_seconds",
            "From the first byte of a request to its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.learning = Histogram(
            "ocar_learn_duration_seconds",
            "Time to predict and learn a batch.",
            buckets=_SECONDS,
            registry=registry,
        )
        ProcessCollector(registry=registry)
        registry.register(_OfService(service))

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)


class Measured:
    """Middleware that counts requests and their time, by ``paths``; all others are one."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, paths: Collection[str]) -> None:
        self.app, self._metrics, self._paths = app, metrics, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"
        begun, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.latency.labels(path).observe(time.perf_counter() - begun)


class _OfService(Collector):
    """Reads the service whenever Prometheus asks."""

    def __init__(self, service: Callable[[], Service | None]) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """All that there is to say of the service."""
        versions = {
            "version": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        yield InfoMetricFamily("ocar_build", "Versions.", value=versions)
        service = self._service()
        ready = service is not None and not service.failure
        yield _gauge("ocar_ready", "1 if batches are accepted.", ready)
        if service is not None:
            yield from _of_service(service)


def _of_service(service: Service) -> Iterator[Metric]:
    status, learner = service.status(), service.learner
    memory = learner.memory
    yield _gauge("ocar_learned_batches", "Batches learned.", status["batches"])
    yield _gauge("ocar_accepted_batches", "Batches in the journal.", status["accepted"])
    yield _gauge("ocar_saved_batches", "Batches in the newest checkpoint.", status["saved"])
    yield _gauge("ocar_queue_batches", "Batches that wait to be learned.", status["waiting"])
    limit = status["most_waiting"]
    yield _gauge("ocar_queue_limit_batches", "Batches that may wait.", limit)
    yield _gauge("ocar_failed", "1 if learning has stopped.", bool(status["failure"]))
    yield _gauge("ocar_unsaved", "1 if the last checkpoint failed.", bool(status["unsaved"]))
    yield _gauge("ocar_classes", "Classes seen.", len(status["classes"]))
    if (score := service.score()) is not None:
        name, about = "ocar_prequential_accuracy", "Accuracy on the last samples before learning."
        if learner.head is None:
            name, about = "ocar_prequential_error", "Mean absolute error before learning."
        yield _gauge(name, about, score)
    yield _gauge("ocar_memory_samples", "Samples in the replay memory.", len(memory))
    yield _gauge("ocar_memory_limit_samples", "Samples that it may hold.", memory.capacity)
    yield _gauge("ocar_memory_bytes", "Size of the replay memory.", memory.memory_usage())
    guard = CounterMetricFamily("ocar_guard_events", "What the guard did.", labels=["event"])
    for event in _EVENTS:
        guard.add_metric([event], status["guard"][event])
    yield guard


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=float(value))
