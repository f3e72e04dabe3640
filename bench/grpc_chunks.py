"""A peer of the chunk plane: the same frames in a server-streaming method of gRPC, without TLS."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from rose.transfer.manifest import CHUNK_BYTES_MAX, Chunk, UpdateKey

SERVICE = "bench.Chunks"
METHOD = "Chunks"
OPTIONS = (
    ("grpc.max_receive_message_length", CHUNK_BYTES_MAX + 64),
    ("grpc.max_send_message_length", CHUNK_BYTES_MAX + 64),
)
# One call requests as much as one connection of the chunk plane in a few round trips.
CHUNKS_PER_CALL = 16
# The header of an answer in the chunk plane.
_ANSWER = struct.Struct("<4sIQqII")


@contextmanager
def serving(kept: Sequence[bytes]) -> Iterator[str]:
    """Serve frames by tile; yield the address."""

    def answer(content: bytes, _context: Any) -> Iterator[bytes]:
        for tile in struct.unpack(f"<{len(content) // 4}I", content):
            header = _ANSWER.pack(b"RANS", True, 0, 0, tile, len(kept[tile]))
            yield b"".join((header, kept[tile]))

    methods: Mapping[str, Any] = {METHOD: grpc.unary_stream_rpc_method_handler(answer)}
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, options=OPTIONS)
        generic = grpc.method_handlers_generic_handler(SERVICE, methods)
        server.add_generic_rpc_handlers((generic,))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield address
        finally:
            server.stop(None).wait(60)


class GrpcChunks:
    """Receives frames over a channel with `OPTIONS`."""

    def __init__(self, channel: Any, *, timeout_s: float) -> None:
        self._call = channel.unary_stream(f"/{SERVICE}/{METHOD}")
        self._timeout_s = timeout_s

    def chunks(self, _key: UpdateKey, wanted: Sequence[Chunk]) -> Iterator[tuple[int, memoryview]]:
        for at in range(0, len(wanted), CHUNKS_PER_CALL):
            tiles = [chunk.tile for chunk in wanted[at : at + CHUNKS_PER_CALL]]
            asked = struct.pack(f"<{len(tiles)}I", *tiles)
            for content in self._call(asked, timeout=self._timeout_s):
                tile = _ANSWER.unpack_from(content)[4]
                yield tile, memoryview(content)[_ANSWER.size :]
