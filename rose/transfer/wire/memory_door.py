"""Hands the memory of a publisher's shadow to receivers of the same user on the same host.

The door is a Unix socket in the abstract namespace, named after the chunk port. A receiver in
another network namespace, of another user or without the token gets nothing, and pulls chunks.
"""

import fcntl
import hmac
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from rose.closing import Closing, Once
from rose.thread import Thread
from rose.transfer.manifest import Chunk
from rose.transfer.publishing.shadow_memory import NOWHERE, SharedTiles

# Longest time for each message, in seconds.
TIMEOUT_S: Final = 2.0
_BACKLOG: Final = 64
# Frames until the pages of all are let go of, since they count as memory of this process.
_TILES_MAPPED: Final = 16
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
    """Reads whole tiles from a publisher's memory. One thread uses it.

    Args:
        fd: descriptor of the memory; the caller closes it.
        offsets: see `SharedTiles`.

    Raises:
        OSError: the memory cannot be mapped, or another process could shorten it.
    """

    def __init__(self, fd: int, offsets: Sequence[int]) -> None:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            # Reading past the end of a shortened mapping would kill this process.
            raise OSError("the memory is not sealed")
        self._mapping = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        self._memory = np.frombuffer(self._mapping, np.uint8)
        self._offsets = offsets
        self._given = 0

    def frame(self, chunk: Chunk) -> memoryview | None:
        """Return the frame of a whole tile, with any MAC; None if the tile is not there.

        The frame is the publisher's memory, which may change at any time: a copy must be compared
        with the digest again.
        """
        offset = self._offsets[chunk.tile] if chunk.tile < len(self._offsets) else NOWHERE
        frame = self._memory[offset : offset + chunk.nbytes].data
        if offset == NOWHERE or not chunk.is_of(frame):
            return None
        self._given += 1
        if self._given % _TILES_MAPPED == 0:
            self.forget()
        return frame

    def forget(self) -> None:
        """Let go of the pages of frames; they are mapped again when they are read."""
        self._mapping.madvise(mmap.MADV_DONTNEED)


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
        try:
            magic, count = _HELLO.unpack(content)
            offsets = struct.unpack(f"<{count}q", _received(door, _OFFSET_BYTES * count))
            return MemoryReader(descriptors[0], offsets) if magic == _MAGIC else None
        except (OSError, IndexError, struct.error):
            return None
        finally:
            for fd in descriptors:
                os.close(fd)


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
