"""Two ends of a link: throughput of rose's data plane, and of a bare TCP sender."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np

from bench.netns import Link, inside, shaped_link
from bench.refit_ranks import Rank
from bench.row_publisher import RowPublisher
from rose.errors import check
from rose.transfer import VersionLog
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.security import TlsFiles
from rose.transfer.wire.server import serve

_PIECE_BYTES: Final = 1 << 20
_DEADLINE_S: Final = 60.0
_LEFT: Final = struct.Struct("<Q")  # a request of the bare sender: the number of bytes
STREAMS_MAX: Final = 4
_ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@dataclass(frozen=True, slots=True)
class Wire:
    """A link with its delay.

    Args:
        bits_per_s: rate of each direction.
        delay_ms: delay of each direction.
        loss: share of the packets that each direction drops.
        congestion: congestion control of both ends; None for the machine's.
    """

    bits_per_s: float
    delay_ms: float
    loss: float = 0.0
    congestion: str | None = None

    @property
    def name(self) -> str:
        """Return its name in rows."""
        words = [f"{self.bits_per_s / 1e9:g}gbit", f"{self.delay_ms:g}ms"]
        if self.congestion is not None:
            words += [f"loss_{100 * self.loss:g}pct", self.congestion]
        return "_".join(words)


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

    def by_tcp(self, streams: int = 1) -> float:
        """Return the bits per second of a bare sender over several connections."""
        return self._rate(streams)

    def _rate(self, how: str | int) -> float:
        self._far.say(how)
        nbytes, seconds = self._far.hear()
        check(nbytes >= self.nbytes, f"{how} brought {nbytes} bytes of {self.nbytes}")
        return float(8 * nbytes / seconds)


@contextmanager
def link_ends(
    wire: Wire, nbytes: int, *, files_for: Callable[[str], TlsFiles] | None = None
) -> Iterator[LinkEnds]:
    """Make a wire with a server and a bare sender at its near end, and a process at the far one.

    Args:
        wire: rate and delay of the link.
        nbytes: bytes of each transfer.
        files_for: function that makes certificates for an address; None for no TLS.

    Raises:
        Unavailable: this machine can have no link.
    """
    with ExitStack() as parts:
        link = parts.enter_context(
            shaped_link(wire.bits_per_s, delay_ms=wire.delay_ms, loss=wire.loss)
        )
        if wire.congestion is not None:
            _control(link, wire.congestion)
        tls = None if files_for is None else files_for(link.near.address)
        with inside(link.near.namespace):
            server = serve(random_log(nbytes), f"{link.near.address}:0", tls=tls)
            parts.callback(server.close)
            sender = parts.enter_context(_bare_sender(link))
        source = (server.address, server.token, tls)
        far = Rank(link.far.namespace, _receive, source, (link.near.address, sender), nbytes)
        parts.callback(far.end)
        yield LinkEnds(far, nbytes)


def _control(link: Link, congestion: str) -> None:
    """Choose the congestion control of both ends, which must be on the machine's list meanwhile."""
    before = _ALLOWED.read_text()
    _ALLOWED.write_text(f"{before.strip()} {congestion}")
    try:
        for end in (link.near, link.far):
            end.set("net.ipv4.tcp_congestion_control", congestion)
    finally:
        _ALLOWED.write_text(before)


@contextmanager
def _bare_sender(link: Link) -> Iterator[int]:
    """Send each client that connects as many bytes as it asks for; yield the port."""
    listener = socket.create_server((link.near.address, 0))
    content = memoryview(bytes(_PIECE_BYTES))

    def send(connection: socket.socket) -> None:
        with connection:
            while asked := connection.recv(_LEFT.size):
                (left,) = _LEFT.unpack(asked)
                while left > 0:
                    left -= connection.send(content[: min(left, _PIECE_BYTES)])

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the listener is closed
            threading.Thread(target=send, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=run, name="bare-sender")
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(_DEADLINE_S)


def _receive(
    line: Connection,
    source: tuple[str, str, TlsFiles | None],
    sender: tuple[str, int],
    nbytes: int,
) -> None:
    """On request pull the newest version, or as many bytes from the bare sender, until killed."""
    address, token, tls = source
    remote = RemoteSource(address, token, tls=tls)
    manifest = remote.wait_manifests(-1, _DEADLINE_S)[-1]
    bare = [socket.create_connection(sender, _DEADLINE_S) for _ in range(STREAMS_MAX)]
    with ThreadPoolExecutor(STREAMS_MAX) as readers:
        while True:
            how = line.recv()
            began_ns = time.perf_counter_ns()
            if how == "rose":
                frames = remote.chunks(manifest.key, manifest.chunks)
                got = sum(len(frame or b"") for _, frame in frames)
            else:
                shares = [nbytes // how + (at < nbytes % how) for at in range(how)]
                got = sum(readers.map(_read, bare, shares))
            line.send((got, (time.perf_counter_ns() - began_ns) / 1e9))


def _read(connection: socket.socket, nbytes: int) -> int:
    """Ask the bare sender for bytes; return their number once all have arrived."""
    room = memoryview(bytearray(_PIECE_BYTES))
    connection.sendall(_LEFT.pack(nbytes))
    got = 0
    while got < nbytes:
        got += connection.recv_into(room, min(nbytes - got, _PIECE_BYTES))
    return got
