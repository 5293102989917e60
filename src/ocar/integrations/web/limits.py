"""Who may ask, how often and how much: a token, a rate for each client, a size of requests."""

from __future__ import annotations

import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Callable

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROBES = ("/health", "/ready")
"""Answered to everybody, at any rate: what a load balancer asks."""

UNLIMITED = (*PROBES, "/metrics")

_CLIENTS = 4096


class Rate:
    """A token bucket a client: ``rate`` requests a second, that many at once; 0 for no limit."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self._most, self._clock = rate, max(1.0, rate), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Count a request; False if it is one too many."""
        if not self.rate:
            return True
        now = self._clock()
        left, since = self._left.pop(client, (self._most, now))
        left = min(self._most, left + (now - since) * self.rate)
        self._left[client] = (left - 1 if left >= 1 else left), now
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return left >= 1


class Limits:
    """Middleware that refuses requests before they reach the application.

    Args:
        app: The application.
        token: What ``Authorization: Bearer`` has to say; empty if nothing is asked for.
        rate: Requests a second from one client; 0 for no limit.
        most_bytes: Largest body of a request.
    """

    def __init__(self, app: ASGIApp, *, token: str, rate: float, most_bytes: int) -> None:
        self.app, self._token, self._most = app, token.encode(), most_bytes
        self._rate = Rate(rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application answer it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            await refusal(scope, receive, send)
        else:
            await self.app(scope, self._counted(receive), send)

    def _refusal(self, scope: Scope) -> Response | None:
        path, headers = scope["path"], Headers(scope=scope)
        client = (scope.get("client") or ("",))[0]
        if path not in UNLIMITED and not self._rate.allows(client):
            return error(
                429, f"At most {self._rate.rate:g} requests a second.", **{"Retry-After": "1"}
            )
        given = headers.get("authorization", "").encode("latin-1")
        # Both are compared to their end, whatever they hold: the time tells nothing of the token.
        known = hmac.compare_digest(given, b"Bearer " + self._token)
        if self._token and path not in PROBES and not known:
            return error(
                401, "Authorization: Bearer TOKEN is needed.", **{"WWW-Authenticate": "Bearer"}
            )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._most:
            return error(413, _too_large(self._most))
        return None

    def _counted(self, receive: Receive) -> Receive:
        """The body piece by piece, until it is too long: its length need not be in the header."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise HTTPException(413, _too_large(self._most))
            return message

        return counted


def error(status: int, detail: object, **headers: str) -> Response:
    """An answer that is an error; what is not ASCII is escaped, so it can always be sent."""
    body = json.dumps({"detail": detail})
    return Response(body, status, headers, media_type="application/json")


def _too_large(most: int) -> str:
    return f"A request may have at most {most} bytes. Send smaller batches."
