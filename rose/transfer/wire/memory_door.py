"""Hands the memory of a publisher's shadow to receivers of the same user on the same host.

The door is a Unix socket in the abstract namespace, named after the chunk port. A receiver in
another network namespace, of another user or without the token gets nothing, and pulls chunks.
"""

import hmac
import os
import socket
import struct
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from rose.closing import Closing, Once
from rose.thread import Thread
from rose.transfer.manifest import TILE_MAC_BYTES, Chunk
from rose.transfer.publishing.shadow_memory import NOWHERE, SharedTiles

# Longest time for each message, in seconds.
TIMEOUT_S: Final = 2.0
_BACKLOG: Final = 64
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_HELLO: Final = struct.Struct("<8sQ")  # magic, number of tiles
_MAGIC: Final = b"ROSEMEM1"
_OFFSET_BYTES: Final = 8


class MemoryDoor(Closing):
    """Gives the descriptor of shared tiles to callers of the same user that have the token.

    Args:
        tiles: the shared tiles.
        token: token that a caller must present.
        port: chunk port of the server.

    Raises:
        OSError: the door's name is taken, or the system has no such sockets.
    """

    def __init__(self, tiles: SharedTiles, token: bytes, port: int) -> None:
        self._tiles, self._token = tiles, token
        self._once = Once()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(_name(port))
        self._listener.listen(_BACKLOG)
        self._thread = Thread(self._run, name="rose-memory-door", on_failure=lambda _: None)
        self._thread.start()

    def close(self) -> None:
        """Stop; receivers that have the memory may go on to read it."""
        self._once(self._close)

    def _close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller, suppress(OSError):
                caller.settimeout(TIMEOUT_S)
                self._serve(caller)

    def _serve(self, caller: socket.socket) -> None:
        if not _is_same_user(caller) or not hmac.compare_digest(
            _received(caller, len(self._token)), self._token
        ):
            return
        offsets = self._tiles.offsets
        socket.send_fds(caller, [_HELLO.pack(_MAGIC, len(offsets))], [self._tiles.fd])
        caller.sendall(struct.pack(f"<{len(offsets)}q", *offsets))


class MemoryReader:
    """Reads whole tiles from a publisher's memory. Any thread may call.

    Args:
        fd: descriptor of the memory; this object closes it.
        offsets: see `SharedTiles`.
    """

    def __init__(self, fd: int, offsets: Sequence[int]) -> None:
        self._fd, self._offsets = fd, offsets
        weakref.finalize(self, os.close, fd)

    def frame(self, chunk: Chunk) -> memoryview | None:
        """Return the frame of a whole tile, without a MAC; None if the tile is not there.

        The publisher may be writing the tile, or its version may be another one by now.
        """
        if chunk.tile >= len(self._offsets) or self._offsets[chunk.tile] == NOWHERE:
            return None
        frame = np.empty(chunk.nbytes, np.uint8)
        frame[-TILE_MAC_BYTES:] = 0
        elements = frame[:-TILE_MAC_BYTES].data
        try:
            got = os.preadv(self._fd, [elements], self._offsets[chunk.tile])
        except OSError:
            return None
        return frame.data if got == len(elements) and chunk.is_of(frame.data) else None


def reader_of(port: int, token: bytes) -> MemoryReader | None:
    """Return a reader of the memory behind the door of a chunk port; None if there is none here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(TIMEOUT_S)
        try:
            door.connect(_name(port))
            if not _is_same_user(door):
                return None
            door.sendall(token)
            content, descriptors, _, _ = socket.recv_fds(door, _HELLO.size, 1)
        except OSError:
            return None
        if len(content) != _HELLO.size or len(descriptors) != 1:
            for fd in descriptors:
                os.close(fd)
            return None
        magic, count = _HELLO.unpack(content)
        try:
            offsets = _received(door, _OFFSET_BYTES * count) if magic == _MAGIC else b""
        except OSError:
            offsets = b""
        reader = MemoryReader(descriptors[0], struct.unpack(f"<{len(offsets) // 8}q", offsets))
        return reader if offsets else None


def _name(port: int) -> str:
    return f"\0rose-weights-{port}"


def _is_same_user(peer: socket.socket) -> bool:
    content = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(content)[1] == os.geteuid())


def _received(peer: socket.socket, nbytes: int) -> bytes:
    """Receive exactly so many bytes.

    Raises:
        OSError: they did not come.
    """
    content = bytearray()
    while len(content) < nbytes:
        if not (some := peer.recv(min(nbytes - len(content), 1 << 20))):
            raise ConnectionError("the other side hung up")
        content += some
    return bytes(content)
