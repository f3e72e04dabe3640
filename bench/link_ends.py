"""Two ends of a link: throughput of rose's data plane, and of a bare TCP sender."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import numpy as np

from bench.netns import Link, inside, shaped_link
from bench.refit_ranks import Rank
from bench.row_publisher import RowPublisher
from rose.errors import check
from rose.transfer import VersionLog
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve

_PIECE_BYTES: Final = 1 << 20
_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Wire:
    """A link with its delay.

    Args:
        bits_per_s: rate of each direction.
        delay_ms: delay of each direction.
    """

    bits_per_s: float
    delay_ms: float

    @property
    def name(self) -> str:
        """Return its name in rows."""
        return f"{self.bits_per_s / 1e9:g}gbit_{self.delay_ms:g}ms"


def random_log(nbytes: int) -> VersionLog:
    """Return a log whose newest version has `nbytes` of incompressible frames."""
    rng = np.random.default_rng(41)
    old, new = (np.frombuffer(rng.bytes(nbytes), np.uint16) for _ in range(2))
    log = VersionLog()
    RowPublisher(old, "bench", 1, 1, log).publish(new)
    return log


class LinkEnds:
    """Both ends, ready to send the same bytes with rose or with a bare sender.

    The far end, where the bytes arrive, measures the seconds from its request to the last byte.
    """

    def __init__(self, far: Rank, nbytes: int) -> None:
        self._far = far
        self.nbytes = nbytes

    def by_rose(self) -> float:
        """Return the bits per second of a version's frames."""
        return self._rate("rose")

    def by_tcp(self) -> float:
        """Return the bits per second of a bare sender."""
        return self._rate("tcp")

    def _rate(self, how: str) -> float:
        self._far.say(how)
        nbytes, seconds = self._far.hear()
        check(nbytes >= self.nbytes, f"{how} brought {nbytes} bytes of {self.nbytes}")
        return float(8 * nbytes / seconds)


@contextmanager
def link_ends(wire: Wire, nbytes: int) -> Iterator[LinkEnds]:
    """Make a wire with a server and a bare sender at its near end, and a process at the far one.

    Args:
        wire: rate and delay of the link.
        nbytes: bytes of each transfer.

    Raises:
        Unavailable: this machine can have no link.
    """
    with ExitStack() as parts:
        link = parts.enter_context(shaped_link(wire.bits_per_s, delay_ms=wire.delay_ms))
        with inside(link.near.namespace):
            server = serve(random_log(nbytes), f"{link.near.address}:0")
            parts.callback(server.close)
            sender = parts.enter_context(_bare_sender(link, nbytes))
        place = (link.near.address, sender)
        far = Rank(link.far.namespace, _receive, server.address, server.token, place, nbytes)
        parts.callback(far.end)
        yield LinkEnds(far, nbytes)


@contextmanager
def _bare_sender(link: Link, nbytes: int) -> Iterator[int]:
    """Send `nbytes` to each client that connects and asks; yield the port."""
    listener = socket.create_server((link.near.address, 0))
    content = memoryview(bytes(_PIECE_BYTES))

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the listener is closed
            with connection:
                while connection.recv(1):
                    left = nbytes
                    while left > 0:
                        left -= connection.send(content[: min(left, _PIECE_BYTES)])

    thread = threading.Thread(target=run, name="bare-sender")
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(_DEADLINE_S)


def _receive(
    line: Connection, address: str, token: str, sender: tuple[str, int], nbytes: int
) -> None:
    """On request pull the newest version, or as many bytes from the bare sender, until killed."""
    source = RemoteSource(address, token)
    manifest = source.wait_manifests(-1, _DEADLINE_S)[-1]
    bare = socket.create_connection(sender, _DEADLINE_S)
    room = memoryview(bytearray(_PIECE_BYTES))
    while True:
        how = line.recv()
        began_ns = time.perf_counter_ns()
        got = 0
        if how == "rose":
            for _, frame in source.chunks(manifest.key, manifest.chunks):
                got += len(frame or b"")
        else:
            bare.sendall(b"?")
            while got < nbytes:
                got += bare.recv_into(room)
        line.send((got, (time.perf_counter_ns() - began_ns) / 1e9))
