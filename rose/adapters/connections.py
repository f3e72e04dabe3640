"""Connections of the HTTP server: uvicorn's with httptools, and limits for slow or many clients."""

import asyncio
import resource
from typing import Any, Final

import msgspec
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rose.adapters.http_errors import RETRY_AFTER_S, error_body

_HEAD_S: Final = 10.0  # time for the head of a request to arrive
_LINGER_S: Final = 1.0  # time for a refused client to read its answer
# File descriptors for all but clients: workers, files, and refused connections.
_RESERVED: Final = 128
_DESCRIPTORS_MAX: Final = 1 << 20


def raise_descriptors() -> int:
    """Raise the soft limit of open files as far as it goes; return the limit for connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(1, (wanted if soft == resource.RLIM_INFINITY else soft) - _RESERVED)


class Connection(HttpToolsProtocol):
    """A connection that closes when the head of a request takes too long to arrive.

    If there are too many connections, it answers 429, and closes.
    """

    connections_max = 1 << 20  # set by `connections_of`
    _late: asyncio.TimerHandle | None = None
    _is_refused = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._is_refused = True
            transport.write(_too_many(self.connections_max))
            self.loop.call_later(_LINGER_S, transport.close)
        else:
            self._expect_head()

    @override
    def data_received(self, data: bytes) -> None:
        # What a refused client sends is read: a connection with unread data resets when it closes.
        if not self._is_refused:
            super().data_received(data)

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    @override
    def on_headers_complete(self) -> None:
        self._forget_head()
        super().on_headers_complete()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    @override
    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, as all other errors are answered."""
        if not self.transport.is_closing():
            body = error_body(
                400, "the request must be well-formed HTTP with one length of its body"
            )
            self.transport.write(_answer(b"400 Bad Request", body))
            self.transport.close()

    def _expect_head(self) -> None:
        """Start the time limit for a head."""
        if self._late is None:
            self._late = self.loop.call_later(_HEAD_S, self.transport.close)

    def _forget_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def connections_of(most: int) -> type[Connection]:
    """Return the class of connections of a server that has at most `most` of them."""
    return type("Connection", (Connection,), {"connections_max": most})


def _too_many(most: int) -> bytes:
    body = error_body(429, f"at most {most} connections may be open: retry later")
    return _answer(b"429 Too Many Requests", body, b"retry-after: %d\r\n" % RETRY_AFTER_S)


def _answer(status: bytes, body: dict[str, Any], headers: bytes = b"") -> bytes:
    data = msgspec.json.encode(body)
    return (
        b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"content-length: %d\r\n" % len(data) + headers + b"\r\n" + data
    )
