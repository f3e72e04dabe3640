"""Chunks over TCP, moved by threads of the C++ core without Python's lock.

A receiver runs in a serving process, where a Python loop that wakes for every piece of a frame
would take the GIL from serving. The bytes are in `docs/protocol.md`, "Weights between processes".
"""

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from os import fspath
from typing import Final

from rose import _core
from rose.closing import Closing, Once
from rose.errors import InvalidArgument, RoseError, Unavailable
from rose.thread import Thread
from rose.transfer.manifest import Chunk, UpdateKey
from rose.transfer.publishing.shelf import Shelf
from rose.transfer.source import Frames
from rose.transfer.wire.security import TlsFiles
from rose.units import MIB

STREAMS: Final = 4
TIMEOUT_S: Final = 10.0
# Limit for bytes in flight. They arrive directly in the frames that are yielded, and a higher limit
# is slower over loopback. More chunks are requested once an eighth has arrived: the other 56 MiB
# keep a link of 10 Gb/s busy at a latency of 40 ms.
AHEAD_BYTES: Final = 64 * MIB
AHEAD_CHUNKS: Final = 1024
_MS_PER_S: Final = 1000.0
_US_PER_MS: Final = 1000.0


def core_files(tls: TlsFiles | None) -> _core.TlsFiles | None:
    """Return the certificates in the form that the C++ core takes; None without certificates.

    The core uses TLS 1.3, with certificates on both sides. A client accepts only a server whose
    certificate is for the host that the client connects to.
    """
    if tls is None:
        return None
    return _core.TlsFiles(*map(fspath, (tls.certificate, tls.key, tls.authority)))


class _Ahead:
    """The wanted chunks: tracks chunks in flight, and decides when to request more."""

    def __init__(self, wanted: Sequence[Chunk]) -> None:
        self._waiting = deque(wanted)
        self._nbytes = 0
        self.sizes: dict[int, int] = {}  # bytes in flight, by tile

    @property
    def has_more(self) -> bool:
        return bool(self._waiting or self.sizes)

    def portion(self) -> list[Chunk]:
        """Return the chunks to request now; none while most of the limit is in flight."""
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
        host: name or address of the server.
        port: port of the server.
        token: token of the server.
        tls: certificates; None for plain TCP, on loopback only.
        timeout_s: silence after which a connection is given up, in seconds. A server must answer
            waiting requests sooner.

    Raises:
        InvalidArgument: the token, a number or a TLS file is invalid.
        Unavailable: the host cannot be resolved, or the machine has no libssl.so.3.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: bytes,
        *,
        tls: TlsFiles | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._timeout_ms = timeout_s * _MS_PER_S
        self._client = _core.ChunkClient(
            host,
            port,
            token,
            streams=STREAMS,
            tls=core_files(tls),
            timeout_ms=self._timeout_ms,
        )
        # At exit OpenSSL frees what it shares, so the thread of the core must have ended by then.
        weakref.finalize(self, self._client.close)

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Yield (tile, frame) in order of arrival; the frame is None if it is no longer kept.

        Frames are received into the bytes objects that are yielded, without a copy. Close or
        exhaust the generator before the next call; closing gives up chunks in flight.

        Raises:
            InvalidArgument: a tile is listed twice.
            Unavailable: the server cannot be reached, broke off twice without a chunk in between,
                or the pull was cancelled. Earlier frames stay usable.
            DeadlineExceeded: no byte arrived for `timeout_s`.
            CorruptData: the answer is invalid, or a frame has another size than published.
        """
        if len({chunk.tile for chunk in wanted}) != len(wanted):
            raise InvalidArgument("a tile may be requested only once per call")
        ahead = _Ahead(wanted)
        try:
            while ahead.has_more:
                if portion := ahead.portion():
                    tiles = [chunk.tile for chunk in portion]
                    self._client.fetch(key.n, key.base_n, tiles, [one.nbytes for one in portion])
                # Twice the timeout, so that the core detects a silent connection first.
                arrived = self._client.next(2 * self._timeout_ms)
                if arrived is None:
                    raise Unavailable("the fetch was cancelled")
                ahead.came(arrived[0])
                yield arrived
        finally:
            if ahead.sizes:
                self._client.cancel()

    def cancel(self) -> None:
        """Give up chunks in flight: a running iteration raises `Unavailable`."""
        self._client.cancel()

    def close(self) -> None:
        """Cancel all pulls, disconnect and join the thread."""
        self._client.close()


# Longest wait of a request for a chunk, which a relay may have to fetch; below a client's timeout.
PARK_MS: Final = 8000.0
# Limit for all receivers together: `STREAMS` connections of each receiver of a weight server.
CONNECTIONS_MAX: Final = 512
# Requests served at the same time, so that a slow request does not delay the others.
ANSWERERS: Final = 4
# Whole tiles that are looked up together, so that a relay requests several at a time.
WHOLE_TOGETHER: Final = 8
_LOOK_MS: Final = 60_000.0
# Pause before a failed thread is replaced, so that a recurring bug does not take a whole core.
_BREATH_S: Final = 0.1
# Environment failures of a lookup: the receiver asks again.
_WORLD: Final = (RoseError, MemoryError)


class ChunkServer:
    """Serves the chunks of a log until it is closed.

    A thread of the core moves the bytes; Python threads only find the frames.

    Args:
        served: shelf with the chunks.
        token: token that every peer must present first.
        host: address of this machine; any free port is used.
        tls: certificates for both sides; None for loopback only.
    """

    def __init__(
        self,
        served: Shelf,
        token: bytes,
        host: str,
        *,
        tls: TlsFiles | None = None,
    ) -> None:
        self._served = served
        self._once = Once()
        self._is_closing = threading.Event()
        self._plane = _core.ChunkServer(
            host,
            0,
            token,
            tls=core_files(tls),
            connections_max=CONNECTIONS_MAX,
            park_ms=PARK_MS,
        )
        weakref.finalize(self, self._plane.close)  # as in `ChunkClient`
        self.port: int = self._plane.port
        self._threads: list[Thread] = []
        for _ in range(ANSWERERS):
            self._begin()

    @property
    def longest_rtt_ms(self) -> float:
        """Return the longest round trip to a receiver, in ms; 0 before one has come."""
        return self._plane.longest_rtt_us / _US_PER_MS

    def _begin(self) -> None:
        thread = Thread(self._answer, name="rose-chunks", on_failure=self._begin_again)
        thread.start()
        self._threads.append(thread)  # after the start: `close` joins all threads in the list

    def _begin_again(self, _failure: BaseException) -> None:
        """Replace a failed thread; its request is refused after `PARK_MS`."""
        if not self._is_closing.wait(_BREATH_S):
            self._begin()

    def close(self) -> None:
        """Break off all connections and join all threads."""
        self._once(self._close)

    def _close(self) -> None:
        self._is_closing.set()
        self._plane.close()
        while self._threads:  # A failed thread may still start another.
            self._threads.pop().join()

    def _answer(self) -> None:
        while not self._is_closing.is_set():
            misses = self._plane.take_misses(_LOOK_MS, most=1)
            if misses and UpdateKey(*misses[0][:2]).is_whole:
                misses += self._plane.take_misses(0, most=WHOLE_TOGETHER - 1)
            for place, some in groupby(misses, key=lambda miss: miss[:2]):
                key, tiles = UpdateKey(*place), [tile for *_, tile in some]
                if key.is_whole:
                    self._look_up_whole(key, tiles)
                    continue
                for tile in tiles:
                    self._look_up(key, tile)

    def _look_up_whole(self, key: UpdateKey, tiles: list[int]) -> None:
        left = set(tiles)
        with suppress(*_WORLD):
            for tile, frame in self._served.frames_of(key, tiles):
                if frame is not None:
                    self._plane.give(key.n, key.base_n, tile, frame)
                    left.discard(tile)
        for tile in left:
            self._plane.refuse(key.n, key.base_n, tile)

    def _look_up(self, key: UpdateKey, tile: int) -> None:
        try:
            frame = self._served.chunk(key, tile)
            asked = 0 if frame is None else self._plane.give(key.n, key.base_n, tile, frame)
        except _WORLD:
            frame, asked = None, 0
        if frame is None:
            self._plane.refuse(key.n, key.base_n, tile)
        with suppress(*_WORLD):
            for _ in range(1, asked):
                self._served.chunk(key, tile)  # to count the chunk once per request
