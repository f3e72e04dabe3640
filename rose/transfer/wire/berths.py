"""Berths: where a weight server lays frames out for those who read them by a mover."""

import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from rose.closing import Closing
from rose.errors import CorruptData, Unavailable
from rose.transfer.manifest import UpdateKey
from rose.transfer.movers.introduction import Introduction
from rose.transfer.movers.porter_process import PorterProcess
from rose.transfer.relaying.upstream import Served
from rose.units import MIB

# Receivers at a time: each has a thread of the server's, and a berth.
BERTHS: Final = 4
# A berth has two halves: one is filled while the other is read. Two of the largest frames each.
HALF_BYTES: Final = 8 * MIB
HALVES: Final = 2

# offset, then u32 bytes of each frame; 0: it is not kept
_OFFSET: Final = struct.Struct("<Q")
_SIZE: Final = struct.Struct("<I")


class Berth:
    """A place in the bounce memory of a porter. One thread uses it.

    Args:
        porter: whose memory it is.
        index: which of the places.
    """

    def __init__(self, porter: PorterProcess, index: int) -> None:
        self.porter: Final = porter
        self.index: Final = index

    @property
    def introduction(self) -> Introduction:
        """Return who is read from, once it is ready.

        Raises:
            Unavailable: it could not be started, or was closed.
            DeadlineExceeded: it is not ready in time.
            CorruptData: it says what introduces nobody.
        """
        return self.porter.introduction

    def lay_out(self, half: int, served: Served, key: UpdateKey, tiles: Sequence[int]) -> bytes:
        """Put frames into a half, one behind another; return the offer: where, and how long each.

        Raises:
            CorruptData: more is asked for than there is room for.
            Unavailable: a frame cannot be read now.
            DeadlineExceeded: it did not come in time.
        """
        begin = (HALVES * self.index + half) * HALF_BYTES
        at, sizes = begin, []
        for tile in tiles:
            frame = served.chunk(key, tile)
            nbytes = 0 if frame is None else len(frame)
            if at + nbytes > begin + HALF_BYTES:
                raise CorruptData("more is asked for than there is room for")
            if frame is not None:
                at += self.porter.bounce.put(at, frame)
            sizes.append(_SIZE.pack(nbytes))
        return _OFFSET.pack(begin) + b"".join(sizes)


def read_offer(content: bytes, count: int) -> tuple[int, tuple[int, ...]]:
    """Return the offset of an offer, and the sizes of its frames.

    Raises:
        CorruptData: it is no offer of so many frames.
    """
    if len(content) != _OFFSET.size + count * _SIZE.size:
        raise CorruptData("these bytes offer no chunks, or not as many as were asked for")
    return _OFFSET.unpack_from(content)[0], struct.unpack_from(f"<{count}I", content, _OFFSET.size)


class Berths(Closing):
    """The berths of one mover, and its porter, which is started again when it has ended.

    Any thread may call.

    Args:
        mover: one of `MOVERS`.

    Raises:
        InvalidArgument: there is no such mover, or it is not installed.
        Unavailable: its porter cannot be started.
        DeadlineExceeded: it is not ready in time.
    """

    def __init__(self, mover: str) -> None:
        self._mover = mover
        self._lock = threading.Lock()  # guards what follows; held over no wait for a porter
        self._is_closed = False
        self._free = list(range(BERTHS))
        self._porter = self._started()
        with ExitStack() as undo:
            undo.callback(self.close)
            _ = self._porter.introduction  # it can be started at all
            undo.pop_all()

    @contextmanager
    def taken(self) -> Iterator[Berth]:
        """Give a free berth, and take it back at the end; its porter may not be ready yet.

        Raises:
            Unavailable: there is none, the porter has ended and cannot be started, or this was
                closed.
        """
        berth = self._take()
        try:
            yield berth
        finally:
            self._give(berth)

    def _take(self) -> Berth:
        with self._lock:
            if self._is_closed:
                raise Unavailable("this server is closed")
            if not self._free:
                raise Unavailable("every berth is taken")
            is_new = not self._porter.is_alive
            if is_new:
                self._porter.close()
                self._porter = self._started()
            if is_new or len(self._free) == BERTHS:
                self._porter.serve(True)
            return Berth(self._porter, self._free.pop())

    def _give(self, berth: Berth) -> None:
        with self._lock:
            self._free.append(berth.index)
            if len(self._free) == BERTHS:
                with suppress(Unavailable):  # it has ended, which the next one will see
                    self._porter.serve(False)

    def close(self) -> None:
        """Kill the porter; whoever reads from it hears of that."""
        with self._lock:
            self._is_closed = True
            self._porter.close()

    def _started(self) -> PorterProcess:
        return PorterProcess(self._mover, BERTHS * HALVES * HALF_BYTES)
