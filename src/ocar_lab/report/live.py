"""The page while runs go on: what has changed is read again, and the page asks for it.

``/`` is the page, ``/data`` its content as JSON. The answer has an entity tag; a request with the
same tag in ``If-None-Match`` is answered 304. No request changes anything.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ocar.errors import ConfigError, OcarError
from ocar.files import encode, printable
from ocar_lab.report.page import Rendered, render, wrap
from ocar_lab.report.sections import Report, make_report
from ocar_lab.report.studies import StudyPart, read_part
from ocar_lab.runs import Measured, Result, Run, read_result, read_run
from ocar_lab.runs.find import find_all, together
from ocar_lab.runs.folder import CONFIG, DAMAGE, METRICS, STATUS
from ocar_lab.runs.studies import JOURNAL, STUDY

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine reaches."""


class Answer(NamedTuple):
    """What the page shows at a moment."""

    tag: str  # the same for the same content
    rendered: Rendered

    def body(self) -> bytes:
        """The content as JSON."""
        title, content = map(json.dumps, (self.rendered.title, self.rendered.content))
        return encode(f'{{"title":{title},"content":{content},"data":{self.rendered.data}}}')


class Watcher:
    """Reads runs, kept results and studies below some folders, again when their files change.

    Args:
        folders: The folders; one that does not exist is empty until it does.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[Any, Any]] = {}  # state of the files, content or error
        self._answer: Answer | None = None

    def look(self) -> Answer:
        """The page as it is now."""
        with self._lock:
            known: dict[Path, tuple[Any, Any]] = {}
            for folder in filter(Path.is_dir, self.folders):
                found = find_all(folder)
                known |= self._read(read_run, found.runs, CONFIG, METRICS, STATUS)
                known |= self._read(read_result, found.results, "")
                known |= self._read(read_part, found.studies, STUDY, JOURNAL, ".lock")
            changed = [*map(id, known.values())] != [*map(id, self._known.values())]
            self._known = known
            if self._answer is None or changed:
                title = ", ".join(folder.resolve().name for folder in self.folders)
                rendered = render(_report([v for _, v in known.values()], title), live=True)
                tag = hashlib.blake2b(encode(repr(rendered)), digest_size=12).hexdigest()
                self._answer = Answer(f'"{tag}"', rendered)
            return self._answer

    def _read(
        self, read: Callable[[Path], object], paths: Sequence[Path], *files: str
    ) -> dict[Path, tuple[Any, Any]]:
        """The state of the files of each path, and its content or the error.

        A path is read again if one of its files has changed. What is running is read each time,
        since its process can end without a word in a file.
        """

        def one(path: Path) -> tuple[Any, Any]:
            marks = [_mark(path / file) for file in files]
            before = self._known.get(path, (None, None))
            if before[0] == marks and not _is_running(before[1]):
                return before
            try:
                content = read(path)
            except OcarError as error:
                content = printable(str(error))
            same = before[0] == marks and _is_running(content)
            return before if same else (marks, content)

        with ThreadPoolExecutor() as pool:
            return dict(zip(paths, pool.map(one, paths), strict=True))


def _mark(path: Path) -> tuple[int, ...]:
    """Another value if a file has changed; empty without the file."""
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_mtime_ns, state.st_size, state.st_ino


def _is_running(content: object) -> bool:
    return isinstance(content, (Run, StudyPart)) and content.state == "running"


def _report(contents: Sequence[object], title: str) -> Report:
    """A report on what can be shown; what cannot be is among its errors."""
    runs, twice = together(
        [one for one in contents if isinstance(one, Run)],
        [one for one in contents if isinstance(one, Result)],
    )
    studies = [one for one in contents if isinstance(one, StudyPart)]
    errors = [*(one for one in contents if isinstance(one, str)), *twice]

    def made(some: Sequence[Measured]) -> Report:
        return make_report(some, title=title, created="", studies=studies, errors=errors)

    try:
        return made(runs)
    except DAMAGE:  # find the runs whose numbers make no sense
        fine = []
        for run in runs:
            try:
                made([run])
                fine.append(run)
            except DAMAGE as error:
                said = f"{run.path} is damaged: {type(error).__name__}: {error}."
                errors.append(printable(said))
        return made(fine)


class Server(ThreadingHTTPServer):
    """Serves the page.

    Args:
        folders: As in :class:`Watcher`.
        host: The address to listen on.
        port: The port; 0 for a free one.

    Raises:
        ConfigError: It cannot listen there.
    """

    def __init__(self, folders: Sequence[Path], *, host: str, port: int) -> None:
        self.watcher = Watcher(folders)
        # Another site's name can be made to lead here, so that its scripts could read the page.
        self.names = LOOPBACK if host in LOOPBACK else None
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Cannot listen on {host}, port {port}: {str(error).rstrip('.')}. Choose "
                "another --port; 0 takes a free one."
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with the page, or its content."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if self.server.names and host not in self.server.names:
            self._send(HTTPStatus.FORBIDDEN, b"Another host was asked for.", "text/plain")
        elif self.path == "/":
            answer = self.server.watcher.look()
            self._send(HTTPStatus.OK, encode(wrap(answer.rendered, tag=answer.tag)), "text/html")
        elif self.path == "/data":
            answer = self.server.watcher.look()
            if self.headers.get("If-None-Match") == answer.tag:
                self._send(HTTPStatus.NOT_MODIFIED, b"", "application/json", answer.tag)
            else:
                self._send(HTTPStatus.OK, answer.body(), "application/json", answer.tag)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"There is only / and /data.", "text/plain")

    def _send(self, status: HTTPStatus, body: bytes, kind: str, tag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are not logged: there is one each second."""
