"""Chunks over TCP: threads of the C++ core move the bytes, and hold no lock of Python's meanwhile.

A receiver lives in a serving process, where a loop in Python that wakes for every piece of a frame
would take the interpreter's lock from serving. Bytes: `docs/protocol.md`, "Weights between
processes".
"""

from collections import deque
from collections.abc import Sequence
from os import fspath
from typing import Final

from rose import _core
from rose.closing import Closing
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.manifest import Chunk, UpdateKey
from rose.transfer.source import Frames
from rose.transfer.wire.security import TlsFiles
from rose.units import MIB

STREAMS: Final = 4
TIMEOUT_S: Final = 10.0
# What is on its way at most, in memory where it stays when it came: with more of it a loopback is
# slower. More is asked for once an eighth of it has come, so the rest, 56 MiB, keeps 10 Gb/s busy
# at 40 ms from ask to answer.
AHEAD_BYTES: Final = 64 * MIB
AHEAD_CHUNKS: Final = 1024
_MS_PER_S: Final = 1000.0


def core_files(tls: TlsFiles | None) -> _core.TlsFiles | None:
    """Return certificates as the core takes them: TLS 1.3, and both sides show one.

    A client takes only a server whose certificate is for the host that it connects to.
    """
    if tls is None:
        return None
    return _core.TlsFiles(*map(fspath, (tls.certificate, tls.key, tls.authority)))


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
        tls: None for bytes in the clear: on loopback only.
        timeout_s: without a byte, before a connection is given up. A server that parks asks must
            park them for less.

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

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
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

    def cancel(self) -> None:
        """Give up what is on its way: whoever iterates gets `Unavailable`."""
        self._client.cancel()

    def close(self) -> None:
        """Cancel for good, hang up and join the thread; once is enough."""
        self._client.close()
