"""Chunks by a mover, from the side that wants them: a porter of its own reads what is offered."""

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

import grpc

from rose.closing import Closing
from rose.errors import CorruptData, DeadlineExceeded, RoseError, Unavailable
from rose.transfer.manifest import Chunk, UpdateKey
from rose.transfer.movers.introduction import Introduction
from rose.transfer.movers.porter_process import PorterProcess
from rose.transfer.receiving.source import Frame
from rose.transfer.wire.asking import pack_ask, portions
from rose.transfer.wire.berths import HALF_BYTES, HALVES, read_offer
from rose.transfer.wire.messages import TOKEN_KEY
from rose.transfer.wire.offers import METHOD
from rose.units import MIB

# What one call asks for: its deadline is for all of it, and its berth is free for others then.
CALL_BYTES: Final = 64 * MIB
_TIMEOUTS: Final = 4  # of an answer, for a call


class MoverChunks(Closing):
    """Gets chunks that lie in the berths of a server on this machine.

    One thread at a time iterates; any thread may call `close`. What is read is copied out of the
    porter's memory at once, so nothing that a peer does later can change it.

    Args:
        channel: to the server.
        token: of the server.
        mover: one of `MOVERS`.
        timeout_s: for an answer; a call of 64 MiB has four times that.
    """

    def __init__(self, channel: Any, token: bytes, mover: str, *, timeout_s: float) -> None:
        self._call = channel.stream_stream(METHOD)
        self._metadata = ((TOKEN_KEY, token.hex()),)
        self._mover = mover
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # guards what follows
        self._is_closed = False
        self._porter: PorterProcess | None = None
        self._of: Introduction | None = None  # whom that porter reads from
        self._answers: Any = None  # of the call that is under way

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        """Yield (tile, frame) in the order asked for; None for what is kept no more.

        Raises:
            Unavailable: the server cannot be reached, offers no such mover, or broke off; or the
                porter ended. What came is good.
            DeadlineExceeded: it took too long.
            CorruptData: what came is no answer, or none that was asked for.
        """
        halves = deque(portions(wanted, HALF_BYTES))
        while halves:
            count = min(len(halves), CALL_BYTES // HALF_BYTES)
            yield from self._called(key, [halves.popleft() for _ in range(count)])

    def close(self) -> None:
        """Kill the porter; whoever iterates gets `Unavailable`."""
        with self._lock:
            self._is_closed = True
            porter, self._porter = self._porter, None
        if porter is not None:
            porter.close()

    def break_off(self) -> None:
        """End a call that is under way, and the porter that reads for it; later ones go on."""
        with self._lock:
            answers, porter = self._answers, self._porter
        if answers is None:
            return
        answers.cancel()
        if porter is not None:
            self._drop(porter)

    def _called(
        self, key: UpdateKey, asked: Sequence[Sequence[Chunk]]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        asks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        try:
            answers = self._call(
                iter(asks.get, None), timeout=_TIMEOUTS * self._timeout_s, metadata=self._metadata
            )
        except ValueError as error:
            raise Unavailable(f"the source was closed or moved: {error}") from error
        with self._lock:
            self._answers = answers
        try:
            asks.put(self._mover.encode())
            there = Introduction.from_json(self._next(answers))
            porter = self._porter_to(there)
            for portion in asked[:HALVES]:
                asks.put(pack_ask(key, portion))
            for index, portion in enumerate(asked):
                yield from self._read(porter, there, portion, self._next(answers))
                # Only now: it is laid out where this one was.
                for later in asked[index + HALVES : index + HALVES + 1]:
                    asks.put(pack_ask(key, later))
        finally:
            with self._lock:
                self._answers = None
            asks.put(None)
            answers.cancel()  # of no effect once it is over

    def _read(
        self, porter: PorterProcess, there: Introduction, portion: Sequence[Chunk], offer: bytes
    ) -> Iterator[tuple[int, Frame | None]]:
        """Read what was offered, and yield it."""
        offset, sizes = read_offer(offer, len(portion))
        if any(size not in (0, chunk.nbytes) for chunk, size in zip(portion, sizes, strict=True)):
            raise CorruptData("a frame that is offered has not the size that was published")
        if any(sizes):
            try:
                porter.read(there, offset, sum(sizes), self._timeout_s)
            except RoseError:
                self._drop(porter)
                raise
        at = 0
        for chunk, size in zip(portion, sizes, strict=True):
            yield chunk.tile, porter.bounce.copy(at, size) if size else None
            at += size

    def _porter_to(self, there: Introduction) -> PorterProcess:
        """Return a porter in the network of another one, the same as long as that is the same."""
        with self._lock:
            porter, is_same = self._porter, self._of == there
        if porter is not None:
            if is_same and porter.is_alive:
                return porter
            self._drop(porter)
        with self._lock:
            if self._is_closed:
                raise Unavailable("this source is closed")
            porter = PorterProcess(self._mover, HALF_BYTES, join=there)
            self._porter, self._of = porter, there
        try:
            _ = porter.introduction  # it is ready; until then it can be closed, or broken off
        except RoseError:
            self._drop(porter)
            raise
        return porter

    def _drop(self, porter: PorterProcess) -> None:
        with self._lock:
            if self._porter is porter:
                self._porter = None
        porter.close()

    def _next(self, answers: Iterator[bytes]) -> bytes:
        try:
            return next(answers)
        except StopIteration:
            raise CorruptData("the weight server offers fewer chunks than asked") from None
        except grpc.RpcError as error:
            raise self._failure(error) from error

    def _failure(self, error: Any) -> RoseError:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded("the weight server took too long for its offers")
        if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED):
            return Unavailable(
                f"the weight server does not offer {self._mover}: start it with "
                f"--offer {self._mover}, or receive over TCP"
            )
        return Unavailable(f"the weight server offered no chunks: {code.name} {details}".strip())
