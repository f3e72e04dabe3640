"""Chunks over TCP: threads of the C++ core move the bytes, and hold no lock of Python's meanwhile.

A receiver lives in a serving process, where a loop in Python that wakes for every piece of a frame
would take the interpreter's lock from serving. Bytes: `docs/protocol.md`, "Weights between
processes".
"""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Final, Protocol

from typing_extensions import Buffer

from rose import _core
from rose.closing import Closing
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.manifest import Chunk, UpdateKey
from rose.transfer.source import Frame
from rose.units import MIB

TOKEN_BYTES: Final = 32
STREAMS: Final = 4
TIMEOUT_S: Final = 10.0
CONNECTIONS_MAX: Final = 64
# What is on its way at most, in memory where it stays when it came: with more of it a loopback is
# slower. More is asked for once an eighth of it has come, so the rest, 56 MiB, keeps 10 Gb/s busy
# at 40 ms from ask to answer.
AHEAD_BYTES: Final = 64 * MIB
AHEAD_CHUNKS: Final = 1024
# That are taken at once.
MISSES: Final = 1024
_MS_PER_S: Final = 1000.0


class TlsPaths(Protocol):
    """Where the certificates of one side are: PEM files.

    TLS 1.3, and both sides show a certificate. A client takes only a server whose certificate is
    for the host that it connects to.
    """

    @property
    def certificate(self) -> str | PathLike[str]:
        """Of this side, its chain behind it."""

    @property
    def key(self) -> str | PathLike[str]:
        """Of this side."""

    @property
    def authority(self) -> str | PathLike[str]:
        """Who signed the certificates of the other side."""


def _files(tls: TlsPaths | None) -> _core.TlsFiles | None:
    if tls is None:
        return None
    return _core.TlsFiles(fspath(tls.certificate), fspath(tls.key), fspath(tls.authority))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast all receivers of a server are sent to together: rate * time + burst at most.

    Args:
        bytes_per_s: 0 for as fast as it goes.
        burst_bytes: that may go at once, from 16 KiB to 4 GiB.
    """

    bytes_per_s: int = 0
    burst_bytes: int = MIB


AS_FAST_AS_IT_GOES: Final = Pace()


class ChunkServer(Closing):
    """Keeps frames and gives them to receivers, in a thread of the core, until it is closed.

    Any thread may call.

    Args:
        token: 32 bytes that every receiver must show; a stranger is told nothing.
        host: an address of this machine.
        port: 0 for any that is free.
        tls: None for bytes in the clear: on loopback only.
        pace: of all receivers together.
        connections_max: of all receivers; a receiver has several.
        park_s: how long an ask for a chunk that is not there waits for it (see `take_misses`); 0:
            it is answered at once that the chunk is not kept.
        greeting_s: from the connection to the token.
        idle_s: without an ask; the receiver connects again when it has one.
        send_s: without a byte taken, before a receiver is dropped.

    Raises:
        InvalidArgument: the token, a limit or a file of TLS is none.
        Unavailable: the port cannot be listened on, or the machine has no libssl.so.3.
    """

    def __init__(
        self,
        token: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: TlsPaths | None = None,
        pace: Pace = AS_FAST_AS_IT_GOES,
        connections_max: int = CONNECTIONS_MAX,
        park_s: float = 0.0,
        greeting_s: float = 5.0,
        idle_s: float = 60.0,
        send_s: float = 30.0,
    ) -> None:
        self._server = _core.ChunkServer(
            host,
            port,
            token,
            tls=_files(tls),
            bytes_per_s=pace.bytes_per_s,
            burst_bytes=pace.burst_bytes,
            connections_max=connections_max,
            park_ms=park_s * _MS_PER_S,
            greeting_ms=greeting_s * _MS_PER_S,
            idle_ms=idle_s * _MS_PER_S,
            send_ms=send_s * _MS_PER_S,
        )

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return self._server.port

    def put(self, key: UpdateKey, tile: int, frame: Buffer) -> None:
        """Keep a frame, without a copy: its bytes must stay as they are until it is forgotten.

        Raises:
            InvalidArgument: it is empty, longer than `CHUNK_BYTES_MAX`, or its key is none.
        """
        self._server.put(key.n, key.base_n, tile, frame)

    def forget(self, key: UpdateKey) -> int:
        """Drop the frames of an update; return how many bytes of them were sent.

        A frame that is being sent goes out to its end.
        """
        return self._server.forget(key.n, key.base_n)

    def take_misses(self, timeout_s: float, most: int = MISSES) -> list[tuple[UpdateKey, int]]:
        """Return what receivers wait for and nobody was told yet; wait for that if need be.

        Whoever takes a miss answers it with `put`, `give` or `refuse`. Nothing comes back at the
        deadline, and once the server is closed.
        """
        misses = self._server.take_misses(timeout_s * _MS_PER_S, most)
        return [(UpdateKey(n, base_n), tile) for n, base_n, tile in misses]

    def give(self, key: UpdateKey, tile: int, frame: Buffer) -> int:
        """Answer whoever waits for a chunk, and keep nothing; return how many do.

        Raises:
            InvalidArgument: as of `put`.
        """
        return self._server.give(key.n, key.base_n, tile, frame)

    def refuse(self, key: UpdateKey, tile: int) -> None:
        """Tell whoever waits for a chunk that it is not kept."""
        self._server.refuse(key.n, key.base_n, tile)

    def set_pace(self, pace: Pace) -> None:
        """Change the pace while it runs; what was sent before still counts."""
        self._server.set_pace(pace.bytes_per_s, pace.burst_bytes)

    def sent_bytes(self, key: UpdateKey) -> int:
        """Return the bytes of frames of an update that went out whole since it is there."""
        return self._server.sent_bytes(key.n, key.base_n)

    @property
    def sent_bytes_total(self) -> int:
        """Return the bytes of all frames that went out whole."""
        return self._server.sent_bytes_total

    @property
    def turned_away(self) -> int:
        """Return how many connections did not show the token, or came when there was no place."""
        return self._server.turned_away

    @property
    def connections(self) -> int:
        """Return how many connections there are."""
        return self._server.connections

    def close(self) -> None:
        """Break off all connections and join the thread; once is enough."""
        self._server.close()


class _Ahead:
    """What is wanted: which of it is on its way, and when to ask for more."""

    def __init__(self, wanted: Sequence[Chunk]) -> None:
        self._waiting = deque(wanted)
        self._nbytes = 0
        self.sizes: dict[int, int] = {}  # of what is on its way, by tile

    @property
    def has_more(self) -> bool:
        return bool(self._waiting or self.sizes)

    def portion(self) -> list[Chunk]:
        """Return what to ask for now: nothing while most of what may be on its way is."""
        portion: list[Chunk] = []
        if 8 * self._nbytes > 7 * AHEAD_BYTES or 8 * len(self.sizes) > 7 * AHEAD_CHUNKS:
            return portion
        while self._waiting and len(self.sizes) < AHEAD_CHUNKS:
            nbytes = self._waiting[0].nbytes
            if self._nbytes + nbytes > AHEAD_BYTES:
                break
            chunk = self._waiting.popleft()
            portion.append(chunk)
            self.sizes[chunk.tile] = nbytes
            self._nbytes += nbytes
        return portion

    def came(self, tile: int) -> None:
        self._nbytes -= self.sizes.pop(tile)


class ChunkClient(Closing):
    """Gets chunks from a chunk server over several connections.

    One thread at a time iterates `chunks`; any thread may call `cancel` and `close`.

    Args:
        host: of the server, a name or an address.
        port: of the server.
        token: of the server.
        streams: connections, made when something is asked for.
        tls: None for bytes in the clear: on loopback only.
        timeout_s: without a byte, before a connection is given up. A server that parks asks must
            park them for less.
        bytes_per_s: at most, over all streams; 0 for as fast as it comes.

    Raises:
        InvalidArgument: the token, a number or a file of TLS is none.
        Unavailable: the host has no address, or the machine no libssl.so.3.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: bytes,
        *,
        streams: int = STREAMS,
        tls: TlsPaths | None = None,
        timeout_s: float = TIMEOUT_S,
        bytes_per_s: int = 0,
    ) -> None:
        self._timeout_ms = timeout_s * _MS_PER_S
        self._client = _core.ChunkClient(
            host,
            port,
            token,
            streams=streams,
            tls=_files(tls),
            timeout_ms=self._timeout_ms,
            bytes_per_s=bytes_per_s,
        )

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        """Yield (tile, frame) in the order they come; None for what is kept no more.

        Frames arrive in the bytes objects that are yielded: nothing is copied. Close the generator,
        or exhaust it, before the next: what is on its way then is given up.

        Raises:
            InvalidArgument: a tile is wanted twice.
            Unavailable: the server cannot be reached, broke off twice without a chunk in between,
                or somebody cancelled. What came is good.
            DeadlineExceeded: no byte came for `timeout_s`.
            CorruptData: what came is no answer, or no frame of the size that was published.
        """
        if len({chunk.tile for chunk in wanted}) != len(wanted):
            raise InvalidArgument("a tile is wanted twice")
        ahead = _Ahead(wanted)
        try:
            while ahead.has_more:
                if portion := ahead.portion():
                    tiles = [chunk.tile for chunk in portion]
                    self._client.fetch(key.n, key.base_n, tiles, [one.nbytes for one in portion])
                # Twice: the core's own verdict about a connection that is silent comes first.
                arrived = self._client.next(2 * self._timeout_ms)
                if arrived is None:
                    raise Unavailable("the fetch was cancelled")
                ahead.came(arrived[0])
                yield arrived
        finally:
            if ahead.sizes:
                self._client.cancel()

    @property
    def received_bytes(self) -> int:
        """Return the bytes that came, headers included."""
        return self._client.received_bytes

    @property
    def losses(self) -> int:
        """Return how many connections broke while something was asked for."""
        return self._client.losses

    def cancel(self) -> None:
        """Give up what is on its way: whoever iterates gets `Unavailable`."""
        self._client.cancel()

    def close(self) -> None:
        """Cancel for good, hang up and join the thread; once is enough."""
        self._client.close()
