"""The chunk plane of a weight server: what receivers ask for and the plane has not, it looks up."""

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

# How long an ask waits for whoever has the chunk: a relay may have to fetch it. Less than a client
# waits for a byte.
PARK_MS: Final = 8000.0
# Of all receivers; a receiver has several.
CONNECTIONS_MAX: Final = 64
# As many asks as can be looked up at once: one that takes long delays no other.
ANSWERERS: Final = 4
_LOOK_MS: Final = 60_000.0
# A bug that comes back at once must not take a core.
_BREATH_S: Final = 0.1
# What the world does to who looks a chunk up: the receiver asks again.
_WORLD: Final = (RoseError, MemoryError)


class ChunkServer:
    """Answers for chunks of a log until it is closed.

    Bytes are moved by a thread of the core; a thread of Python only says which frame it is.

    Args:
        served: has the chunks.
        token: that every peer must present first.
        host: an address of this machine; the port is any that is free.
        tls: certificates that both sides show; None: loopback only.
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
        self._threads.append(thread)  # after it was started: `close` joins what is here

    def _begin_again(self, _failure: BaseException) -> None:
        """Have others answered; who asked what failed is refused when its time is over."""
        if not self._is_closing.wait(_BREATH_S):
            self._begin()

    def close(self) -> None:
        """Break off all connections and join all threads."""
        self._is_closing.set()
        self._plane.close()
        while self._threads:  # One that failed may still begin another.
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
                self._served.chunk(key, tile)  # looked up once for several, and sent to each
