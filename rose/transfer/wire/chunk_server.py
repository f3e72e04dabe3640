"""The chunk server of a weight server: finds the requested chunks in a shelf."""

import threading
from contextlib import suppress
from typing import Final

from rose import _core
from rose.errors import RoseError
from rose.thread import Thread
from rose.transfer.manifest import UpdateKey
from rose.transfer.publishing.shelf import Shelf
from rose.transfer.wire.chunk_plane import core_files
from rose.transfer.wire.security import TlsFiles

# Longest wait for a chunk, which a relay may have to fetch; less than a client's timeout.
PARK_MS: Final = 8000.0
# Limit for all receivers; a receiver has several.
CONNECTIONS_MAX: Final = 64
# Requests served at once, so a slow one does not delay the others.
ANSWERERS: Final = 4
_LOOK_MS: Final = 60_000.0
# Pause, so that a bug that repeats does not take a whole core.
_BREATH_S: Final = 0.1
# Environment failures of a lookup: the receiver asks again.
_WORLD: Final = (RoseError, MemoryError)


class ChunkServer:
    """Serves the chunks of a log until it is closed.

    A thread of the core moves the bytes; a Python thread only finds the frames.

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
        self._is_closing = threading.Event()
        self._plane = _core.ChunkServer(
            host,
            0,
            token,
            tls=core_files(tls),
            connections_max=CONNECTIONS_MAX,
            park_ms=PARK_MS,
        )
        self.port: int = self._plane.port
        self._threads: list[Thread] = []
        for _ in range(ANSWERERS):
            self._begin()

    def _begin(self) -> None:
        thread = Thread(self._answer, name="rose-chunks", on_failure=self._begin_again)
        thread.start()
        self._threads.append(thread)  # not before it runs: `close` joins each of these

    def _begin_again(self, _failure: BaseException) -> None:
        """Replace a failed thread; its request is refused when its time is over."""
        if not self._is_closing.wait(_BREATH_S):
            self._begin()

    def close(self) -> None:
        """Break off all connections and join all threads."""
        self._is_closing.set()
        self._plane.close()
        while self._threads:  # One that failed may still start another.
            self._threads.pop().join()

    def _answer(self) -> None:
        while not self._is_closing.is_set():
            for n, base_n, tile in self._plane.take_misses(_LOOK_MS, most=1):
                self._look_up(UpdateKey(n, base_n), tile)

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
                self._served.chunk(key, tile)  # counted once per request
