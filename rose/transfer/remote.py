"""A publisher in another process of this machine."""

import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc

from rose.addresses import loopback
from rose.clock import BootClock
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.transfer import messages, wire
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.source import Frame

CALL_S: Final = 10.0
_MARGIN_S: Final = 5.0
_SEED_S: Final = 60.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", messages.REPLY_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),  # loopback
    ("grpc.use_local_subchannel_pool", 1),  # a server that is gone leaves no back-off to its heir
)


class RemoteSource:
    """A weight server as a source.

    One thread pulls; any thread may call `follow` and `close`. A failed call changes nothing: the
    next one connects again.

    Args:
        address: of the server.
        token: of the server.
        timeout_s: for an answer; a wait for versions takes its own time besides.
    """

    def __init__(self, address: str, token: str, *, timeout_s: float = CALL_S) -> None:
        self._timeout_s = timeout_s
        self._clock = BootClock()
        self._lock = threading.Lock()  # guards what follows; held over no call
        self._channel: Any = None
        self._connection: socket.socket | None = None
        self._chunk_port = 0
        self._is_closed = False
        self.follow(address, token)

    def follow(self, address: str, token: str) -> None:
        """Go to another server from the next call on; one that is under way breaks off.

        Raises:
            InvalidArgument: the address is not on loopback, or the token is none.
        """
        host, port = loopback(address)
        try:
            token_bytes = bytes.fromhex(token)
        except ValueError:
            token_bytes = b""
        if port == 0 or len(token_bytes) != wire.TOKEN_BYTES:
            raise InvalidArgument(f"{address} and its token are not those of a weight server")
        channel = grpc.insecure_channel(address, options=_OPTIONS)
        with self._lock:
            before, self._channel = self._channel, channel
            self._host, self._token = host, token_bytes
            self._chunk_port = 0
            connection = self._connection
        if before is not None:
            before.close()
        _break_off(connection)

    def close(self) -> None:
        """Hang up; calls that are under way break off, and later ones are `Unavailable`."""
        with self._lock:
            self._is_closed = True
            channel, connection = self._channel, self._connection
        channel.close()
        _break_off(connection)
        self._hang_up()

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Ask the server to wait."""
        request = messages.WaitRequest(after_n, int(timeout_s * 1000))
        return self._manifests("Wait", request, timeout_s + self._timeout_s)

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask the server for one; it may have to make it."""
        manifests = self._manifests("Seed", messages.SeedRequest(n, tuple(tiles)), _SEED_S)
        if len(manifests) > 1:
            raise CorruptData("the weight server gave several seeds for one")
        return manifests[0] if manifests else None

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Tell the server."""
        request = messages.ReportRequest(receiver, n, is_match, digest)
        messages.decode(messages.ReportReply, self._call("Report", request, self._timeout_s))

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        """Ask for one after the other on the chunk connection."""
        for one in wanted:
            yield one.tile, self._chunk(key, one.tile)

    def _chunk(self, key: UpdateKey, tile: int) -> Frame | None:
        """Ask on the chunk connection, which is made when there is none.

        Raises:
            Unavailable: it cannot be made, or broke; the next call makes another.
            DeadlineExceeded: the answer did not come in time.
            CorruptData: the answer is none.
        """
        connection = self._connected()
        try:
            connection.settimeout(self._timeout_s)
            connection.sendall(wire.ask(key, tile))
            return self._answer(connection, key, tile)
        except (CorruptData, DeadlineExceeded, Unavailable):  # first: a late answer is an OSError
            self._hang_up()
            raise
        except OSError as error:
            self._hang_up()
            raise Unavailable(f"the connection broke: {error}") from error

    def _answer(self, connection: socket.socket, key: UpdateKey, tile: int) -> Frame | None:
        said = wire.receive(connection, wire.ANSWER_BYTES, self._timeout_s, self._clock)
        nbytes = wire.read_answer(bytes(said), key, tile)
        if nbytes is None:
            return None
        return wire.receive(connection, nbytes, self._timeout_s, self._clock)

    def _connected(self) -> socket.socket:
        with self._lock:
            if self._connection is not None:
                return self._connection
            where, token = (self._host, self._chunk_port), self._token
            is_known = self._chunk_port != 0 and not self._is_closed
        if not is_known:
            raise Unavailable("the weight server did not say where its chunks are")
        try:
            connection = socket.create_connection(where, self._timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(wire.greeting(token))
        except OSError as error:
            raise Unavailable(f"port {where[1]} of {where[0]} does not answer: {error}") from error
        with self._lock:
            self._connection = connection
        return connection

    def _hang_up(self) -> None:
        """Close the connection. Only who pulls does, so nobody reads what was closed meanwhile."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _manifests(self, method: str, request: object, timeout_s: float) -> list[Manifest]:
        reply = messages.decode(messages.ManifestsReply, self._call(method, request, timeout_s))
        with self._lock:
            has_moved, self._chunk_port = self._chunk_port != reply.chunk_port, reply.chunk_port
        if has_moved:
            self._hang_up()
        return list(reply.manifests)

    def _call(self, method: str, request: object, timeout_s: float) -> bytes:
        with self._lock:
            if self._is_closed:
                raise Unavailable("this source is closed")
            channel, token = self._channel, self._token.hex()
        try:
            content: bytes = channel.unary_unary(f"/{messages.SERVICE}/{method}")(
                messages.encode(request),
                timeout=timeout_s,
                metadata=((messages.TOKEN_KEY, token),),
            )
        except grpc.RpcError as error:
            raise _unavailable(method, error) from error
        except ValueError as error:  # the channel was closed meanwhile
            raise Unavailable(f"the source was closed or moved: {error}") from error
        return content


def _break_off(connection: socket.socket | None) -> None:
    """Wake whoever waits on a connection; who pulls finds it broken, and closes it."""
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _unavailable(method: str, error: Any) -> Unavailable:
    code, details = error.code(), error.details()
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return Unavailable("the weight server wants another token")
    return Unavailable(f"the weight server did not answer {method}: {code.name} {details}".strip())
