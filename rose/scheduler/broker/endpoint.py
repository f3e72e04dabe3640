"""Fetch a page of text over HTTP from a stranger: bounded in time and in size."""

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from typing_extensions import Self

from rose.clock import Clock
from rose.errors import InvalidArgument, Unavailable
from rose.units import MIB, MS_PER_S

_CHUNK_BYTES: Final = 1 << 16
_OK: Final = 200
_PATH: Final = "/metrics"


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What a page may cost.

    Args:
        timeout_ms: from connecting to the last byte. Engines answer within milliseconds; a second
            and more is an engine that has stalled. Not bounded by it: a name is looked up for as
            long as the resolver takes, and each address of a host that is silent, and a TLS
            handshake, may take this long by itself. What is connected too late is not read.
        body_bytes_max: engines say some 100 KiB.
        attempts: of which each waits twice as long as the one before.
        backoff_ms: before the second attempt.
    """

    timeout_ms: float = 2_000.0
    body_bytes_max: int = 4 * MIB
    attempts: int = 2
    backoff_ms: float = 100.0


LIMITS: Final = FetchLimits()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine says how it is.

    Args:
        url: as the user wrote it, for sentences.
        host: without the port.
        port: of the server.
        is_tls: whether it is encrypted.
        path: with the query.
    """

    url: str
    host: str
    port: int
    is_tls: bool
    path: str


def endpoint_of(url: str) -> Endpoint:
    """Return what `url` names; without a path, its `/metrics`.

    Raises:
        InvalidArgument: it is no address of a web server.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(f"'{url}' is no URL: {error}") from None
    text = f"{parts.path}?{parts.query}" if parts.query else parts.path
    if parts.scheme not in {"http", "https"} or not host or parts.username is not None:
        raise InvalidArgument(f"'{url}' is no URL such as http://localhost:8000/metrics")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise InvalidArgument(f"'{url}' has characters in its path that no URL has")
    is_tls = parts.scheme == "https"
    path = text if parts.path not in {"", "/"} else _PATH
    return Endpoint(url, host, port or (443 if is_tls else 80), is_tls, path)


def fetch_text(endpoint: Endpoint, clock: Clock, *, limits: FetchLimits = LIMITS) -> str:
    """Return the page; tries again after a failure. No proxy is asked, no redirection followed.

    Raises:
        Unavailable: there was none on any attempt, or it is too long or no text.
    """
    for attempt in range(limits.attempts - 1):
        try:
            return _fetch(endpoint, limits)
        except Unavailable:  # noqa: PERF203 (a loop of two)
            clock.sleep(limits.backoff_ms * 2**attempt / MS_PER_S)
    return _fetch(endpoint, limits)


class _Watch:
    """Hangs up on a server that is late, from a thread that the block's end joins.

    The socket's own timeout starts anew with each byte of a server that dribbles.
    """

    def __init__(self, connection: http.client.HTTPConnection, timeout_ms: float) -> None:
        """Watch a connection that is not open yet."""
        self.is_late = False
        self._connection = connection
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(timeout_ms / MS_PER_S, self._give_up)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        """Start the clock."""
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching, and close the connection."""
        self._timer.cancel()
        self._timer.join()
        self._connection.close()

    def connect(self) -> None:
        """Open the connection. Its socket is kept: an answer takes it from the connection.

        Raises:
            OSError: nobody is there.
            TimeoutError: it took so long that the watch has ended.
        """
        self._connection.connect()
        self._socket = self._connection.sock
        if self.is_late:  # It gave up when there was nothing yet to hang up on.
            raise TimeoutError

    def _give_up(self) -> None:
        self.is_late = True
        sock = self._socket or self._connection.sock
        if sock is not None:  # otherwise it is being connected, and then left
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _fetch(endpoint: Endpoint, limits: FetchLimits) -> str:
    connection = _connection(endpoint, limits.timeout_ms / MS_PER_S)
    watch = _Watch(connection, limits.timeout_ms)
    try:
        with watch:
            watch.connect()
            body = _body(connection, endpoint, limits)
    except (OSError, http.client.HTTPException) as error:
        if watch.is_late or isinstance(error, TimeoutError):
            raise Unavailable(_late(endpoint, limits)) from None
        raise Unavailable(f"{endpoint.url} does not answer: {_reason(error)}") from None
    if watch.is_late:  # hanging up can look like the end of the page
        raise Unavailable(_late(endpoint, limits))
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise Unavailable(f"{endpoint.url} answers with bytes that are no text") from None


def _connection(endpoint: Endpoint, timeout_s: float) -> http.client.HTTPConnection:
    if not endpoint.is_tls:
        return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)
    context = ssl.create_default_context()
    return http.client.HTTPSConnection(
        endpoint.host, endpoint.port, timeout=timeout_s, context=context
    )


def _body(connection: http.client.HTTPConnection, endpoint: Endpoint, limits: FetchLimits) -> bytes:
    headers = {"Accept": "text/plain", "Accept-Encoding": "identity", "User-Agent": "rose"}
    connection.request("GET", endpoint.path, headers=headers)
    answer = connection.getresponse()
    if answer.status != _OK:
        raise Unavailable(f"{endpoint.url} answers with status {answer.status}")
    body = bytearray()
    while chunk := answer.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > limits.body_bytes_max:
            raise Unavailable(
                f"{endpoint.url} says more than {limits.body_bytes_max // MIB} MiB: no engine does"
            )
    return bytes(body)


def _late(endpoint: Endpoint, limits: FetchLimits) -> str:
    return f"{endpoint.url} did not answer within {limits.timeout_ms:g} ms"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
