"""A trainer and the ranks of an engine, each rank a process at the far end of a link.

A peer's payload crosses the link once, to the first rank, and is passed on from rank to rank, as
in a ring of NCCL or a tree of relays. Packing, sending, passing on and applying overlap.
"""

import multiprocessing
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.netns import Link, enter, inside
from bench.refit_peers import Bits, Frame, Layout, RefitPeer
from rose.errors import CorruptData, DeadlineExceeded, Unavailable
from rose.transfer.codec.operations import digest

_CONTEXT: Final = multiprocessing.get_context("spawn")
_HEAD: Final = struct.Struct("<IQ")  # tensor, bytes of its frame
DEADLINE_S: Final = 300.0  # longest wait for a message or an update
_AHEAD: Final = 64  # frames in flight between two ranks


class Rank:
    """A process in a namespace, and the line for its messages."""

    def __init__(self, namespace: str, work: Callable[..., None], *arguments: Any) -> None:
        self._line, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_begin, args=(namespace, theirs, work, arguments), daemon=True
        )
        self._process.start()
        theirs.close()

    def say(self, message: Any) -> None:
        """Send the process a message."""
        self._line.send(message)

    def hear(self) -> Any:
        """Return the next message of the process.

        Raises:
            DeadlineExceeded: none arrived in time.
            Unavailable: the process has died.
        """
        try:
            if not self._line.poll(DEADLINE_S):
                raise DeadlineExceeded(f"a rank sent no message for {DEADLINE_S:g} s")
            return self._line.recv()
        except EOFError as error:
            raise Unavailable("a rank has died") from error

    def end(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.join(DEADLINE_S)
        self._line.close()


def _begin(
    namespace: str, line: Connection, work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    if namespace:
        enter(namespace)
    work(line, *arguments)


@dataclass(frozen=True, slots=True)
class Place:
    """Description of a rank.

    Args:
        rank: number of the rank.
        layout: layout of the model.
        folder: folder with `old.npy`, the canonical row at the start.
        address: address on which ranks listen.
    """

    rank: int
    layout: Layout
    folder: Path
    address: str

    def row(self) -> Bits:
        """Return the rank's own row at the start."""
        return self.layout.row_of(self.rank, np.load(self.folder / "old.npy", mmap_mode="r"))


def serve_peer(line: Connection, place: Place, peer: RefitPeer) -> None:
    """Run a rank that a peer updates, until killed.

    It sends its port, and receives that of the next rank, or None. After each update it sends the
    number of received bytes; on request it sends the digest of its row.
    """
    held = place.row()
    listener = socket.create_server((place.address, 0))
    line.send(listener.getsockname()[1])
    next_port = line.recv()
    following = None
    if next_port is not None:
        following = socket.create_connection((place.address, next_port), DEADLINE_S)
    listener.settimeout(DEADLINE_S)
    connection, _ = listener.accept()
    threading.Thread(target=_answer, args=(line, held), daemon=True).start()
    with _pool() as pool, _passing_on(following) as pass_on:
        while True:
            came = 0
            work: list[Future[None]] = []
            for index, frame in _frames(connection, len(place.layout.counts)):
                came += len(frame)
                pass_on(index, frame)
                part, where = place.layout.part(index, place.rank), place.layout.held(index)
                count = place.layout.counts[index]
                work.append(pool.submit(peer.apply, frame, count, part, held[where]))
            for one in work:
                one.result()
            line.send(came)


def _answer(line: Connection, held: Bits) -> None:
    while True:
        line.recv()
        line.send(digest(held))


def _frames(connection: socket.socket, count: int) -> Iterator[tuple[int, memoryview]]:
    for _ in range(count):
        index, nbytes = _HEAD.unpack(_receive(connection, _HEAD.size))
        yield index, _receive(connection, nbytes)


def _receive(connection: socket.socket, nbytes: int) -> memoryview:
    content = memoryview(bytearray(nbytes))
    room = content
    while room:
        got = connection.recv_into(room)
        if got == 0:
            raise Unavailable("the sender closed the connection")
        room = room[got:]
    return content


@contextmanager
def _passing_on(following: socket.socket | None) -> Iterator[Callable[[int, Frame], None]]:
    """Yield a function that sends frames to the next rank from a separate thread."""
    if following is None:
        yield lambda _index, _frame: None
        return
    on_its_way: queue.Queue[tuple[int, Frame]] = queue.Queue(_AHEAD)

    def run() -> None:
        while True:
            send_frame(following, *on_its_way.get(timeout=DEADLINE_S))

    threading.Thread(target=run, name="pass-on", daemon=True).start()
    yield lambda index, frame: on_its_way.put((index, frame))


def send_frame(connection: socket.socket, index: int, frame: Frame) -> None:
    """Send one tensor's frame."""
    connection.sendall(_HEAD.pack(index, len(frame)))
    connection.sendall(frame)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


class PeerTrainer:
    """The near end of a peer: packs and sends versions, and waits until every rank has them."""

    def __init__(
        self,
        peer: RefitPeer,
        layout: Layout,
        old: Bits,
        connection: socket.socket,
        ranks: Sequence[Rank],
    ) -> None:
        self._peer = peer
        self._layout = layout
        self._shadow = old.copy()
        self._connection = connection
        self._ranks = ranks
        self._pool = _pool()

    def update(self, new: Bits) -> int:
        """Update every rank to `new`; return the bytes of payload that crossed the link."""

        def pack(index: int) -> Frame:
            where = self._layout.tensor(index)
            return self._peer.pack(new[where], self._shadow[where])

        for index, frame in enumerate(self._pool.map(pack, range(len(self._layout.counts)))):
            send_frame(self._connection, index, frame)
        came = [int(rank.hear()) for rank in self._ranks]
        return came[0]  # only the first rank's bytes crossed the link

    def check_ranks(self, new: Bits) -> None:
        """Check that every rank holds its part of `new`, bit for bit.

        Raises:
            CorruptData: the part of a rank differs.
        """
        for number, rank in enumerate(self._ranks):
            rank.say(None)
            if rank.hear() != digest(self._layout.row_of(number, new)):
                raise CorruptData(f"{self._peer.name}: rank {number} has other weights")

    def close(self) -> None:
        # The ranks end first, because they would report a closed connection as a fault.
        for rank in self._ranks:
            rank.end()
        self._pool.shutdown()
        self._connection.close()


@contextmanager
def peer_trainer(
    peer: RefitPeer, layout: Layout, old: Bits, folder: Path, link: Link
) -> Iterator[PeerTrainer]:
    """Start the ranks of a peer at the far end and connect to them; stop them after the body.

    Args:
        peer: method of the update.
        layout: layout of the model.
        old: canonical row at the start; also in `folder` as `old.npy`.
        folder: folder with `old.npy`.
        link: link between the trainer and the ranks.
    """
    with ExitStack() as parts:
        address = link.far.address
        places = [Place(number, layout, folder, address) for number in range(layout.ranks)]
        ranks = [Rank(link.far.namespace, serve_peer, place, peer) for place in places]
        for rank in ranks:
            parts.callback(rank.end)
        ports = [rank.hear() for rank in ranks]
        for rank, following in zip(ranks, [*ports[1:], None], strict=True):
            rank.say(following)
        with inside(link.near.namespace):
            connection = socket.create_connection((link.far.address, ports[0]), DEADLINE_S)
        connection.settimeout(DEADLINE_S)
        trainer = PeerTrainer(peer, layout, old, connection, ranks)
        parts.callback(trainer.close)
        yield trainer
