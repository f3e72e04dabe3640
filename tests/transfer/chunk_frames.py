"""Frames that a log keeps and that receivers ask for, and a server of one method of gRPC."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from rose.errors import Unavailable
from rose.transfer.manifest import Chunk, UpdateKey
from rose.transfer.publishing.log import VersionLog
from rose.transfer.wire.grpc_chunks import GrpcChunks
from rose.transfer.wire.remote import RemoteSource

KEY = UpdateKey(7, 6)
AWAY = 404


def chunk_of(tile: int, frame: bytes) -> Chunk:
    return Chunk(tile, len(frame), 1, hashlib.sha256(frame).digest(), (0, 0))


class Kept(VersionLog):
    """A log that has these frames of `KEY`, and cannot be asked for tile `AWAY`."""

    def __init__(self, frames: dict[int, bytes]) -> None:
        super().__init__()
        self._frames = frames

    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        if tile == AWAY:
            raise Unavailable("upstream is away")
        return self._frames.get(tile) if key == KEY else None


def is_there(source: RemoteSource | GrpcChunks) -> bool:
    """Ask for tile 1, which is b"x"; return whether it came."""
    try:
        return dict(source.chunks(KEY, [chunk_of(1, b"x")])) == {1: b"x"}
    except Unavailable:
        return False


@contextmanager
def answering(method: str, handler: Any, *, threads: int = 1) -> Iterator[str]:
    """Serve one method, without a token; give the address."""
    service, name = method.strip("/").split("/")
    with ThreadPoolExecutor(threads) as pool:
        server = grpc.server(pool)
        generic = grpc.method_handlers_generic_handler(service, {name: handler})
        server.add_generic_rpc_handlers((generic,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
