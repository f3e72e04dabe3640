"""Checks before every route: the bearer token, and the size and arrival time of the body.

The guard also answers for the application when it fails, and when the service stops.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from rose.adapters.exchange import App, Exchange, Message, Receive, Scope, Send, header
from rose.adapters.http_errors import (
    CLIENT_GONE,
    Denied,
    body_of,
    headers_of,
    status_of,
)
from rose.adapters.service import RolloutService
from rose.scheduler.watching import ErrorGuard

_LOG: Final = logging.getLogger(__name__)
# Health checks carry no token.
_OPEN_PATHS: Final = frozenset({"/health", "/ping", "/liveness", "/health_generate"})
# Open requests allowed for each sequence in `ServiceLimits.sequences`. More than one, because a
# request that will be refused is also open for a moment.
_REQUESTS_PER_SEQUENCE: Final = 2
# A refused body is read up to this size before the answer: a connection that is closed with unread
# data resets, and the client never sees the answer.
_DRAINED_BYTES: Final = 256 << 20
_POLL_S: Final = 0.01

Fast = Callable[[Exchange], Awaitable[None]]


class Guard:
    """ASGI application that checks each request and then passes it on, with its body read.

    Args:
        app: application that receives the accepted requests.
        fast: routes that answer POST requests of their paths without `app`.
        service: service whose limits apply.
        token: bearer token that clients must send; None: no token is needed.
        fail: function that ends the running requests with an error.
    """

    def __init__(
        self,
        app: App,
        fast: Mapping[str, Fast],
        *,
        service: RolloutService,
        token: str | None,
        fail: Callable[[], None],
    ) -> None:
        self._app, self._fast, self._service, self._fail = app, fast, service, fail
        self._limits = service.limits
        self._token = None if token is None else token.encode()
        self._requests = 0
        self._is_stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._requests += 1
        exchange = Exchange(scope, b"", receive, send)
        guard = ErrorGuard()
        try:
            with guard:
                await self._pass(exchange, receive, send)
        except asyncio.CancelledError:
            # The server cancels what still runs at the end of its time.
            if exchange.is_started:
                raise
            await _refuse(exchange, Denied(503, "the service stops: send the request again"))
        finally:
            self._requests -= 1
        if guard.error is not None:
            await self._answer_for(exchange, guard.error)

    async def stop(self, wait_s: float) -> None:
        """Refuse new requests, and return when the open ones have ended.

        Args:
            wait_s: time after which the open ones end with an error.
        """
        self._is_stopping = True
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while self._requests and loop.time() < end:
            await asyncio.sleep(_POLL_S)
        self._fail()

    async def _pass(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        scope = exchange.scope
        try:
            self._check(scope)
            body = await self._body(scope, receive)
        except Denied as refused:
            if refused.status != 408 and not header(scope, b"expect"):
                await _drain(receive, self._limits.body_s)
            await _refuse(exchange, refused)
            return
        if body is None:
            return
        exchange.body = body
        if (route := self._fast.get(scope["path"])) is not None:
            if scope["method"] != "POST":
                raise Denied(405, f"the method must be POST, got {scope['method']}")
            await route(exchange)
            return

        async def started(message: Message) -> None:
            exchange.is_started = True
            await send(message)

        is_head = scope["method"] == "HEAD"
        passed = {**scope, "method": "GET"} if is_head else scope
        await self._app(
            passed, _replayed(body, receive), _headless(started) if is_head else started
        )

    async def _answer_for(self, exchange: Exchange, error: Exception) -> None:
        """Answer a request whose route has raised."""
        status = status_of(error)
        if status == 500:
            _LOG.error("a request to %s failed", exchange.scope["path"], exc_info=error)
        if exchange.is_started or status == CLIENT_GONE:
            return
        there = self._service.versions() if status == 409 else None
        await exchange.answer(body_of(error, there), status, **headers_of(status))

    def _check(self, scope: Scope) -> None:
        # Readers that disagree about which of the two applies see different requests.
        if header(scope, b"transfer-encoding") and header(scope, b"content-length"):
            raise Denied(400, "a request must not have both Content-Length and Transfer-Encoding")
        if self._is_stopping:
            raise Denied(503, "the service stops: send the request again")
        if scope["path"] in _OPEN_PATHS:
            return
        if self._token is not None:
            shown = header(scope, b"authorization").split(b" ", 1)
            is_bearer = len(shown) == 2 and shown[0].lower() == b"bearer"
            if not is_bearer or not hmac.compare_digest(shown[1].strip(), self._token):
                raise Denied(401, "the request must carry the service's bearer token")
        most = _REQUESTS_PER_SEQUENCE * self._limits.sequences
        if self._requests > most:
            raise Denied(
                429, f"at most {most} requests may be open, got {self._requests}: retry later"
            )
        encoding = header(scope, b"content-encoding")
        if encoding not in {b"", b"identity"}:
            shown_text = encoding.decode("latin-1")
            raise Denied(415, f"a body must not be compressed, got Content-Encoding {shown_text}")

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None if the client has disconnected."""
        most = self._limits.body_bytes
        length = header(scope, b"content-length")
        if length.isdigit() and int(length[:20]) > most:
            raise Denied(413, f"a body must have at most {most} bytes, got {length.decode()}")
        if not length and scope["method"] in {"GET", "HEAD"}:
            return b""
        here, is_late = asyncio.current_task(), False

        def late() -> None:
            nonlocal is_late
            is_late = here is not None and here.cancel()

        # `asyncio.wait_for` would make a task for each request.
        timer = asyncio.get_running_loop().call_later(self._limits.body_s, late)
        try:
            return await _read(receive, most)
        except asyncio.CancelledError:
            if not is_late:
                raise
        finally:
            timer.cancel()
        raise Denied(408, f"the body must arrive within {self._limits.body_s} s")


async def _refuse(exchange: Exchange, refused: Denied) -> None:
    # The body may not be read to its end, so the connection cannot be used again.
    headers = {"connection": "close", **headers_of(refused.status)}
    await exchange.answer(body_of(refused), refused.status, **headers)


async def _read(receive: Receive, most: int) -> bytes | None:
    parts, count = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        count += len(parts[-1])
        if count > most:
            raise Denied(413, f"a body must have at most {most} bytes, got {count} and more")
        if not message.get("more_body", False):
            return b"".join(parts)


async def _drain(receive: Receive, limit_s: float) -> None:
    """Read the rest of a refused body, within limits."""

    async def rest() -> None:
        count = 0
        while count < _DRAINED_BYTES:
            message = await receive()
            count += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return

    with suppress(asyncio.TimeoutError):  # a slow client may miss the answer
        await asyncio.wait_for(rest(), limit_s)


def _replayed(body: bytes, receive: Receive) -> Receive:
    is_read = False

    async def again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _headless(send: Send) -> Send:
    """Return a function that sends an answer without its body, for HEAD."""

    async def only_head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return only_head
