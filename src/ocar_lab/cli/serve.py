"""``ocar serve CHECKPOINT --model MODULE:FUNCTION``: a learner behind HTTP."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ocar.config import require
from ocar.errors import ConfigError
from ocar.items import Item
from ocar.service.opened import open_service
from ocar_lab.cli.arguments import parse
from ocar_lab.cli.tables import print_text
from ocar_lab.optional import needed
from ocar_lab.plugins import find_function

TOKEN = "OCAR_TOKEN"
"""Environment variable with the token."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Serve a saved learner: it predicts and learns over HTTP.

    A batch that was acknowledged is never lost, even if the process is killed. The same command
    starts it again where it was. It listens on this machine only, unless --host says otherwise.
    """

    checkpoint: Path
    """A file that learner.save wrote; it is only read."""

    model: str = ""
    """MODULE:FUNCTION, a function without arguments that makes the checkpoint's model; required."""

    normalize: str | None = None
    """MODULE:FUNCTION, the learner's normalisation, if it is a function of your own."""

    augment: str | None = None
    """MODULE:FUNCTION, the learner's augmentation, if it is a function of your own."""

    state: Path | None = None
    """Folder of journal and checkpoints; by default CHECKPOINT with .state in place of its
    suffix."""

    host: str = "127.0.0.1"
    """Address to listen on. Any but this machine's own needs a token."""

    port: int = 8000
    """Port to listen on; 0 for any that is free."""

    token_file: Path | None = None
    """File with the token that requests need, Authorization: Bearer TOKEN; or set OCAR_TOKEN."""

    max_bytes: int = 8 << 20
    """Largest body of a request, in bytes."""

    rate: float = 0.0
    """Requests a second from one client; 0 for no limit."""

    grace: int = 10
    """Seconds after SIGTERM for requests to end, and as many again to learn waiting batches; the
    next start learns the rest."""

    every: int = 100
    """Batches between two checkpoints."""

    checkpoints: int = 5
    """Checkpoints that are kept to roll back to, at least 2."""

    waiting: int = 64
    """Largest number of batches that wait to be learned."""

    classes: int = 1000
    """Largest number of classes."""

    window: int = 1000
    """Samples of the rolling prequential accuracy."""

    threads: int = 1
    """Threads of PyTorch, and predictions at a time."""

    shape: tuple[int, ...] = ()
    """Shape of a sample; needed if the learner has seen none."""

    dtype: str = "uint8"
    """Type of a sample, such as float32, if the learner has seen none."""

    def __post_init__(self) -> None:
        for name in ("max_bytes", "every", "waiting", "classes", "window", "threads"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("rate", "grace"):
            require(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")


def main(command: str, arguments: list[str], *, debug: bool) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    options = parse(Options, arguments, command=f"ocar {command}")
    if not options.model:
        raise ConfigError("--model MODULE:FUNCTION is needed: it makes the checkpoint's model.")
    token = read_token(options.token_file)
    if options.host not in LOOPBACK and not token:
        raise ConfigError(
            f"--host {options.host} lets other machines in, so a token is needed: --token-file "
            f"FILE, or the environment variable {TOKEN}."
        )
    functions = {flag: _function(options, flag) for flag in ("model", "normalize", "augment")}
    if not (options.checkpoint.exists() or _state(options).exists()):
        raise ConfigError(f"There is no checkpoint {options.checkpoint}. learner.save writes one.")
    with needed("A service", "FastAPI, uvicorn and prometheus-client", extra="serve"):
        import prometheus_client
        import uvicorn

        from ocar.integrations.web.app import Running, make_app
    prometheus_client.disable_created_metrics()  # a second series for each count
    torch.set_num_threads(options.threads)
    listening = _listen(options.host, options.port)

    def stop() -> None:
        server.should_exit = True

    def say() -> None:
        host, port = options.host, listening.getsockname()[1]
        print_text(f"Serving on http://{host}:{port}, state in {_state(options)}")
        sys.stdout.flush()

    running = Running(lambda observe: _open(options, functions, observe), opened=say, failed=stop)
    app = make_app(
        running,
        token=token,
        rate=options.rate,
        most_bytes=options.max_bytes,
        threads=options.threads,
        grace=options.grace,
    )
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=options.grace,
        )
    )
    # uvicorn sends itself the signal again in the end: by then all is saved.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.run(sockets=[listening])
    if running.error is not None:
        raise running.error
    return 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named asyncio sends at once; else an answer waits 40 ms for the client.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigError(
            f"Cannot listen on {host}, port {port}: {str(error).rstrip('.')}."
        ) from error
    return listening


def _function(options: Options, flag: str) -> Any:
    name = getattr(options, flag)
    return None if name is None else find_function(name, flag=f"--{flag}")


def _open(options: Options, functions: Mapping[str, Any], observe: Any) -> Any:
    item = None
    if options.shape:
        dtype = getattr(torch, options.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ConfigError(f"Invalid --dtype {options.dtype}. Must be a type of torch.")
        item = Item(torch.Size(options.shape), dtype)
    return open_service(
        options.checkpoint,
        _state(options),
        **functions,
        item=item,
        every=options.every,
        waiting=options.waiting,
        classes=options.classes,
        checkpoints=options.checkpoints,
        window=options.window,
        observe=observe,
    )


def _state(options: Options) -> Path:
    return options.state or options.checkpoint.with_suffix(".state")


def read_token(path: Path | None) -> str:
    """The token in a file or in the environment; empty if there is none.

    Raises:
        ConfigError: It is too short, or cannot be part of a header.
    """
    token = os.environ.get(TOKEN, "") if path is None else path.read_text(encoding="utf-8")
    token = token.strip()
    if path is not None and not token:
        raise ConfigError(f"{path} is empty. It must hold a token.")
    if token and not (token.isascii() and token.isprintable() and len(token) >= 16):
        raise ConfigError(
            "The token must have at least 16 printable ASCII characters. One is made by: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token
