"""The application of ``ocar serve`` in a thread, and a client that asks it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from service_faults import batch

from ocar.integrations.web.app import Running, make_app
from ocar.service import Service


class Client:
    """Asks an application that runs in a thread."""

    def __init__(self, port: int, running: Running) -> None:
        self.port, self.running = port, running
        self.token = ""

    def raw(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers

    def get(self, path: str) -> tuple[int, Any]:
        status, text, _ = self.raw("GET", path)
        return status, json.loads(text)

    def post(self, path: str, **content: Any) -> tuple[int, Any]:
        status, text, _ = self.raw("POST", path, json.dumps(content))
        return status, json.loads(text)

    def learn(self, name: int) -> tuple[int, Any]:
        x, y = batch(name)
        return self.post("/learn", x=x.tolist(), y=y.tolist(), key=f"key-{name}")

    def values(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """All samples of /metrics by their name and labels."""
        families = text_string_to_metric_families(self.raw("GET", "/metrics")[1])
        samples = [sample for family in families for sample in family.samples]
        return {(s.name, tuple(s.labels.values())): s.value for s in samples}


@contextmanager
def serving(
    opener: Callable[[], Service], *, wait: bool = True, **options: Any
) -> Iterator[Client]:
    """An application in a thread; with ``wait`` the service is ready."""
    listening = socket.create_server(("127.0.0.1", 0))
    failed = threading.Event()

    def open_observed(observe: Callable[[float], None]) -> Service:
        service = opener()
        service._observe = observe
        return service

    running = Running(open_observed, failed=failed.set)
    app = make_app(running, **options)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    client = Client(listening.getsockname()[1], running)
    try:
        while wait and client.raw("GET", "/ready")[0] != 200 and not failed.is_set():
            time.sleep(0.02)
        yield client
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
