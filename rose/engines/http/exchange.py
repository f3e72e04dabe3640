"""Turns over HTTP/1.1: each event reaches its turn within the call that received its bytes.

A turn costs one event per token, so no task wakes up and no buffer is copied for an event.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
import msgspec
from typing_extensions import override

from rose.engines.http.link import CONNECT_S, KEEP_ALIVE_S, failure_of, within
from rose.errors import InvalidArgument, RoseError, Unavailable, sentence

_OK: Final = 200
_REPLY_BYTES_MAX: Final = 1 << 20  # of an answer that is no stream of events


@dataclass(slots=True)
class AnswerEnd:
    """The end of an answer.

    Args:
        status: HTTP status.
        retry_after: header `Retry-After`; "": there is none.
        body: body, if the status is not 200.
    """

    status: int = 0
    retry_after: str = ""
    body: bytes = b""


class _Exchange(asyncio.Protocol):
    """A connection, which carries one request after the other."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpResponseParser | None = None
        self._on_data: Callable[[bytes], None] | None = None
        self._done: asyncio.Future[AnswerEnd] | None = None
        self._late: asyncio.TimerHandle | None = None
        self._reply = AnswerEnd()
        self._has_end = False  # whether the head says where the body ends
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        """True if another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def run(self, request: bytes, on_data: Callable[[bytes], None]) -> AnswerEnd:
        """Send a request, and return at the end of its answer.

        Raises:
            Unavailable: the connection broke.
            Exception: what `on_data` raised.
        """
        self._parser, self._reply = httptools.HttpResponseParser(self), AnswerEnd()
        self._on_data, self._has_end = on_data, False
        self._done = self._loop.create_future()
        try:
            if self._transport is None:
                raise Unavailable(f"the connection to {self._url} was closed")
            self._transport.write(request)
            return await self._done
        finally:
            if not self._done.done() or self._done.cancelled() or self._done.exception():
                self.close()  # This ends the request at the engine too.

    def expire(self, seconds: float) -> None:
        """Close the connection unless the answer ends within `seconds`."""
        if self._late is None and self._done is not None and not self._done.done():
            self._late = self._loop.call_later(seconds, self.close)

    def close(self) -> None:
        """Close the connection, without waiting."""
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the event loop ---------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        if self._parser is None:  # Nobody has asked.
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(Unavailable(f"the answer of {self._url} is no HTTP: {sentence(error)}"))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._reply.status and not self._has_end:
            self._complete()
        reason = "it was closed" if exc is None else sentence(exc)
        self._fail(Unavailable(f"the connection to {self._url} broke: {reason}"))

    # ---- called by the parser -------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"retry-after":
                self._reply.retry_after = value.decode("latin-1")
            case b"content-length" | b"transfer-encoding":
                self._has_end = True

    def on_headers_complete(self) -> None:
        if self._parser is not None:
            self._reply.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._reply.status != _OK:
            self._reply.body = (self._reply.body + data)[:_REPLY_BYTES_MAX]
        elif self._on_data is not None:
            try:
                self._on_data(data)
            except (RoseError, msgspec.MsgspecError, ValueError, TypeError) as error:
                self._fail(error)

    def on_message_complete(self) -> None:
        if self._parser is not None and not self._parser.should_keep_alive():
            self.close()
        self._complete()

    def _complete(self) -> None:
        self._finish()
        if self._done is not None and not self._done.done():
            self._done.set_result(self._reply)

    def _fail(self, error: Exception) -> None:
        self._finish()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.close()

    def _finish(self) -> None:
        self._on_data = self._parser = None
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Exchanges:
    """Connections to one engine, which are used again.

    Args:
        url: URL of the engine, as `checked_url` returns it.
        token: bearer token; None: the engine needs none.
        tls: context for https; None: the system's authorities.

    Raises:
        InvalidArgument: the token cannot be sent in a header.
    """

    def __init__(self, url: str, *, token: str | None, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InvalidArgument("an engine's token must be printable ASCII")
        is_secure = parts.scheme == "https"
        self._url, self._prefix = url, parts.path
        self._host, self._port = parts.hostname or "", parts.port or (443 if is_secure else 80)
        self._tls = (tls or ssl.create_default_context()) if is_secure else None
        secret = "" if token is None else f"authorization: Bearer {token}\r\n"
        self._headers = f"host: {parts.netloc}\r\n{secret}content-type: application/json\r\n"
        self._idle: list[_Exchange] = []
        self._running: set[_Exchange] = set()

    async def run(
        self, path: str, body: bytes, on_data: Callable[[bytes, Callable[[float], None]], None]
    ) -> AnswerEnd:
        """Post a request, and return at the end of its answer.

        Args:
            path: path of the route.
            body: JSON body.
            on_data: receives the parts of an answer with status 200, and a function that sets the
                time for the rest of the answer.

        Raises:
            Disconnected: nobody accepts connections at the address.
            Unavailable: the connection could not be made, or broke.
        """
        exchange = await self._taken()
        self._running.add(exchange)
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}content-length: {len(body)}"
        expire = exchange.expire
        try:
            return await exchange.run(
                head.encode("ascii") + b"\r\n\r\n" + body, lambda data: on_data(data, expire)
            )
        finally:
            self._running.discard(exchange)
            if exchange.is_open:
                exchange.idle_since = asyncio.get_running_loop().time()
                self._idle.append(exchange)

    def close(self) -> None:
        """Close all connections."""
        for exchange in (*self._idle, *self._running):
            exchange.close()

    async def _taken(self) -> _Exchange:
        loop = asyncio.get_running_loop()
        while self._idle:
            exchange = self._idle.pop()
            if exchange.is_open and loop.time() - exchange.idle_since < KEEP_ALIVE_S:
                return exchange
            exchange.close()
        try:
            _, exchange = await within(
                CONNECT_S,
                loop.create_connection(
                    lambda: _Exchange(self._url), self._host, self._port, ssl=self._tls
                ),
            )
        except asyncio.TimeoutError:
            raise Unavailable(
                f"{self._url} did not accept a connection within {CONNECT_S} s"
            ) from None
        except OSError as error:  # also errors of TLS
            raise failure_of(self._url, error) from error
        return exchange
