"""Chunks over the gRPC channel of control: slower, and there where the chunk port is not.

One server-streaming method, whose messages are the bytes of the chunk plane: an answer, and behind
it the frame. It holds the interpreter's lock for each message, so it is what is left when the TCP
port cannot be reached, and what the TCP plane is measured against.
"""

import struct
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

import grpc

from rose.clock import BootClock, Clock
from rose.errors import CorruptData, DeadlineExceeded, RoseError, Unavailable
from rose.transfer.manifest import CHUNK_BYTES_MAX, WHOLE, Chunk, UpdateKey
from rose.transfer.receiving.source import Frame
from rose.transfer.relaying.upstream import Served
from rose.transfer.wire.messages import SERVICE, TOKEN_KEY
from rose.units import MIB, NS_PER_S

METHOD: Final = f"/{SERVICE}/Chunks"
MESSAGE_BYTES_MAX: Final = CHUNK_BYTES_MAX + 64
# What one call asks for: its deadline is for all of it.
CALL_BYTES: Final = 64 * MIB
CALL_CHUNKS: Final = 8192
# Calls that a server answers at a time, of the threads that control has too.
CALLS_MAX: Final = 8
# After that a call makes room for others: a client that reads waits no longer for one.
CALL_MAX_S: Final = 60.0

# n, base_n, then u32 tiles
_REQUEST: Final = struct.Struct("<Qq")
_TILE_BYTES: Final = 4
# magic, is_kept, n, base_n, tile, bytes that follow: as on the chunk plane
_ANSWER: Final = struct.Struct("<4sIQqII")
_MAGIC: Final = b"RANS"
_TIMEOUTS: Final = 4  # of a byte, for a call


class _Calls:
    """Calls that run: one whose answers nobody reads keeps its thread until it is cancelled.

    Any thread may call; the lock guards the table, and is held over no call.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_ns: dict[Any, int] = {}  # by context

    def begin(self, context: Any) -> bool:
        """Return whether there is room for a call; where not, those that took too long go."""
        now_ns = self._clock.now_ns()
        with self._lock:
            has_room = len(self._began_ns) < CALLS_MAX
            if has_room:
                self._began_ns[context] = now_ns
            oldest_ns = now_ns - int(CALL_MAX_S * NS_PER_S)
            late = [one for one, at_ns in self._began_ns.items() if at_ns < oldest_ns]
        if not has_room:
            for one in late:
                one.cancel()
        elif not context.add_callback(lambda: self._end(context)):
            self._end(context)  # it is over already
        return has_room

    def _end(self, context: Any) -> None:
        with self._lock:
            self._began_ns.pop(context, None)


def chunks_handler(served: Served, clock: Clock | None = None) -> Any:
    """Return what answers `METHOD` on a gRPC server, for whoever showed the token."""
    calls = _Calls(BootClock() if clock is None else clock)

    def answer(content: bytes, context: Any) -> Iterator[bytes]:
        if not calls.begin(context):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "")
        try:
            key, tiles = _read_request(content)
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
        for portion in _portions(wanted):
            try:
                call = self._call(
                    _REQUEST.pack(key.n, key.base_n) + _tiles(portion),
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


def _portions(wanted: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    portion: list[Chunk] = []
    nbytes = 0
    for chunk in wanted:
        if portion and (nbytes + chunk.nbytes > CALL_BYTES or len(portion) == CALL_CHUNKS):
            yield portion
            portion, nbytes = [], 0
        portion.append(chunk)
        nbytes += chunk.nbytes
    if portion:
        yield portion


def _tiles(portion: Sequence[Chunk]) -> bytes:
    return struct.pack(f"<{len(portion)}I", *(chunk.tile for chunk in portion))


def _read_request(content: bytes) -> tuple[UpdateKey, tuple[int, ...]]:
    size = len(content) - _REQUEST.size
    if size <= 0 or size % _TILE_BYTES or size > CALL_CHUNKS * _TILE_BYTES:
        raise CorruptData("these bytes ask for no chunks")
    n, base_n = _REQUEST.unpack_from(content)
    if base_n < WHOLE:
        raise CorruptData("these bytes ask for no chunks")
    return UpdateKey(n, base_n), struct.unpack_from(
        f"<{size // _TILE_BYTES}I", content, _REQUEST.size
    )


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
