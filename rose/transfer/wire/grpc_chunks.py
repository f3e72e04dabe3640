"""Chunks over the gRPC channel of control: slower, and there where the chunk port is not.

One server-streaming method, whose messages are the bytes of the chunk plane: an answer, and behind
it the frame. It holds the interpreter's lock for each message, so it is what is left when the TCP
port cannot be reached, and what the TCP plane is measured against.
"""

import struct
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

import grpc

from rose.clock import BootClock, Clock
from rose.errors import CorruptData, DeadlineExceeded, RoseError, Unavailable
from rose.transfer.manifest import CHUNK_BYTES_MAX, Chunk, UpdateKey
from rose.transfer.receiving.source import Frame
from rose.transfer.relaying.upstream import Served
from rose.transfer.wire.asking import pack_ask, portions, read_ask
from rose.transfer.wire.calls import Calls
from rose.transfer.wire.messages import SERVICE, TOKEN_KEY
from rose.units import MIB

METHOD: Final = f"/{SERVICE}/Chunks"
MESSAGE_BYTES_MAX: Final = CHUNK_BYTES_MAX + 64
# What one call asks for: its deadline is for all of it.
CALL_BYTES: Final = 64 * MIB
# Calls that a server answers at a time, of the threads that control has too.
CALLS_MAX: Final = 8

# magic, is_kept, n, base_n, tile, bytes that follow: as on the chunk plane
_ANSWER: Final = struct.Struct("<4sIQqII")
_MAGIC: Final = b"RANS"
_TIMEOUTS: Final = 4  # of a byte, for a call


def chunks_handler(served: Served, clock: Clock | None = None) -> Any:
    """Return what answers `METHOD` on a gRPC server, for whoever showed the token."""
    calls = Calls(BootClock() if clock is None else clock, CALLS_MAX)

    def answer(content: bytes, context: Any) -> Iterator[bytes]:
        if not calls.begin(context):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "")
        try:
            key, tiles = read_ask(content)
            for tile in tiles:
                yield _answer(key, tile, served.chunk(key, tile))
        except CorruptData:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "")
        except RoseError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "")

    return grpc.unary_stream_rpc_method_handler(answer)


class GrpcChunks:
    """Gets chunks over a channel that is there for control. One thread at a time iterates.

    Args:
        channel: to the server; it takes messages of `MESSAGE_BYTES_MAX`.
        token: of the server.
        timeout_s: for what a byte may take; a call of 64 MiB has four times that.
    """

    def __init__(self, channel: Any, token: bytes, *, timeout_s: float) -> None:
        self._call = channel.unary_stream(METHOD)
        self._metadata = ((TOKEN_KEY, token.hex()),)
        self._timeout_s = timeout_s

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        """Yield (tile, frame) in the order asked for; None for what is kept no more.

        Raises:
            Unavailable: the server cannot be reached, or broke off; what came is good.
            DeadlineExceeded: it took too long.
            CorruptData: what came is no answer, or none that was asked for.
        """
        for portion in portions(wanted, CALL_BYTES):
            try:
                call = self._call(
                    pack_ask(key, portion),
                    timeout=_TIMEOUTS * self._timeout_s,
                    metadata=self._metadata,
                )
            except ValueError as error:
                raise Unavailable(f"the source was closed or moved: {error}") from error
            try:
                yield from self._answers(key, portion, call)
            finally:
                call.cancel()  # of no effect once it is over

    def _answers(
        self, key: UpdateKey, portion: Sequence[Chunk], call: Iterator[bytes]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        for chunk in portion:
            try:
                content = next(call)
            except StopIteration:
                raise CorruptData("the weight server answers for fewer chunks than asked") from None
            except grpc.RpcError as error:
                raise _failure(error) from error
            yield chunk.tile, _frame(content, key, chunk)


def _answer(key: UpdateKey, tile: int, frame: Frame | None) -> bytes:
    nbytes = 0 if frame is None else len(frame)
    header = _ANSWER.pack(_MAGIC, nbytes > 0, key.n, key.base_n, tile, nbytes)
    return header if frame is None else b"".join((header, frame))


def _frame(content: bytes, key: UpdateKey, chunk: Chunk) -> Frame | None:
    """Return the frame of a message, where it lies, or None when it is not kept.

    Raises:
        CorruptData: it is not the answer for this chunk.
    """
    if len(content) >= _ANSWER.size:
        magic, is_kept, n, base_n, tile, nbytes = _ANSWER.unpack_from(content)
        is_its = magic == _MAGIC and (n, base_n, tile) == (key.n, key.base_n, chunk.tile)
        is_whole = len(content) == _ANSWER.size + nbytes and nbytes in (0, chunk.nbytes)
        if is_its and is_whole and is_kept == (nbytes > 0):
            return memoryview(content)[_ANSWER.size :] if is_kept else None
    raise CorruptData(f"these bytes do not answer for tile {chunk.tile} of version {key.n}")


def _failure(error: Any) -> RoseError:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("the weight server took too long for its chunks")
    return Unavailable(f"the weight server gave no chunks: {error.code().name}")
