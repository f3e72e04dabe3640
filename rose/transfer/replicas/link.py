"""Between the ranks' processes of a replica: a small connection over loopback, one per rank.

A rank greets with the token and says who it is; the coordinator answers with its number. From then
on both send frames, four bytes of length and so many of JSON: words one way, orders the other. A
connection that breaks, or says nothing for too long, is a rank or a coordinator that is gone; the
rank connects again as another incarnation would.
"""

import hmac
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec

from rose.addresses import loopback
from rose.closing import Closing
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.thread import Thread, nothing_rests_on_it
from rose.transfer.replicas.host import TICK_S, ReplicaHost
from rose.transfer.replicas.member import ReplicaMember
from rose.transfer.replicas.messages import Order, Word

FRAME_BYTES_MAX: Final = 4096
TOKEN_BYTES: Final = 32
SILENCE_S: Final = 5.0
_SEND_S: Final = 1.0
_BACKOFF_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_ACCEPT_BACKOFF_S: Final = 0.1

# magic, token, rank, incarnation
_GREETING: Final = struct.Struct(f"<8s{TOKEN_BYTES}sQQ")
_GREETING_MAGIC: Final = b"ROSERPL1"
# magic, the coordinator's number
_ANSWER: Final = struct.Struct("<8sQ")
_LENGTH: Final = struct.Struct("<I")

_Message = TypeVar("_Message", Order, Word)


def encode(message: Order | Word) -> bytes:
    """Return a message as a frame.

    Raises:
        InvalidArgument: the names in it are too long.
    """
    content = msgspec.json.encode(message)
    if len(content) > FRAME_BYTES_MAX:
        raise InvalidArgument(f"a message of {len(content)} bytes: at most {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(content)) + content


def decode(kind: type[_Message], content: bytes) -> _Message:
    """Read what follows the length of a frame.

    Raises:
        CorruptData: it is no such message.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"these bytes are no message of a replica: {error}") from error


class _Connection:
    """Frames over a socket: one thread reads, any may send."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()  # a frame is sent as a whole
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(SILENCE_S)

    def send(self, content: bytes) -> None:
        """Send all of it; a peer that does not read is broken off, which its reader will see."""
        with self._lock, suppress(OSError):
            try:
                self._socket.settimeout(_SEND_S)
                self._socket.sendall(content)
                self._socket.settimeout(SILENCE_S)
            except OSError:
                self.break_off()
                raise

    def read(self, nbytes: int) -> bytes:
        """Return exactly so many bytes.

        Raises:
            Unavailable: the peer is gone, or said nothing for too long.
        """
        content = b""
        while len(content) < nbytes:
            try:
                piece = self._socket.recv(nbytes - len(content))
            except OSError as error:
                raise Unavailable(f"the other side of the replica is gone: {error}") from error
            if not piece:
                raise Unavailable("the other side of the replica has closed the connection")
            content += piece
        return content

    def read_frame(self) -> bytes:
        """Return what is in the next frame.

        Raises:
            Unavailable: the peer is gone.
            CorruptData: the frame is larger than any message.
        """
        (nbytes,) = _LENGTH.unpack(self.read(_LENGTH.size))
        if nbytes > FRAME_BYTES_MAX:
            raise CorruptData(f"a frame of {nbytes} bytes: at most {FRAME_BYTES_MAX}")
        return self.read(nbytes)

    def break_off(self) -> None:
        """Wake whoever reads; the connection is of no more use."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; only its reader does."""
        self._socket.close()


class ReplicaServer(Closing):
    """Lets ranks in other processes of this machine join a host.

    Args:
        host: of the replica; stays its owner's.
        address: on loopback; port 0 for any that is free.
        token: 32 bytes that ranks show; who does not learns nothing.
        connections_max: at once.

    Raises:
        InvalidArgument: the address is not on loopback, or the token is none.
        Unavailable: the port is taken.
    """

    def __init__(
        self, host: ReplicaHost, address: str, token: bytes, *, connections_max: int = 64
    ) -> None:
        where = loopback(address)
        if len(token) != TOKEN_BYTES:
            raise InvalidArgument(f"a token has {TOKEN_BYTES} bytes")
        self._host, self._token = host, token
        self._room = threading.Semaphore(connections_max)
        self._lock = threading.Lock()  # guards the three that follow
        self._live: set[_Connection] = set()
        self._of_rank: dict[int, _Connection] = {}
        self._threads: set[threading.Thread] = set()
        self._is_closing = threading.Event()
        try:
            self._listener = socket.create_server(where, family=_family(where[0]))
        except OSError as error:
            raise Unavailable(f"port {where[1]} of {where[0]} is taken: {error}") from error
        name = f"[{where[0]}]" if ":" in where[0] else where[0]
        self.address: str = f"{name}:{self._listener.getsockname()[1]}"
        self._thread = Thread(
            self._accept, name="rose-replica-in", on_failure=lambda _: self._break_off()
        )
        self._thread.start()

    def close(self) -> None:
        """Break off all connections and join all threads."""
        self._is_closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._break_off()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _break_off(self) -> None:
        """Let every rank see that nobody coordinates it any more."""
        with self._lock:
            live = list(self._live)
        for connection in live:
            connection.break_off()

    def _accept(self) -> None:
        while not self._is_closing.is_set():
            try:
                connected, _ = self._listener.accept()
            except OSError:
                # It may be that the process has no descriptor left, for a while.
                self._is_closing.wait(_ACCEPT_BACKOFF_S)
                continue
            if self._is_closing.is_set() or not self._room.acquire(blocking=False):
                connected.close()
                continue
            connection = _Connection(connected)
            thread = Thread(
                partial(self._serve, connection),
                name="rose-replica-rank",
                on_failure=nothing_rests_on_it,
            )
            with self._lock:
                self._live.add(connection)
                self._threads.add(thread)
            thread.start()

    def _serve(self, connection: _Connection) -> None:
        try:
            with suppress(CorruptData, InvalidArgument, Unavailable):
                self._hear(connection)
        finally:
            connection.close()
            with self._lock:
                self._live.discard(connection)
                self._threads.discard(threading.current_thread())
            self._room.release()

    def _hear(self, connection: _Connection) -> None:
        magic, token, rank, incarnation = _GREETING.unpack(connection.read(_GREETING.size))
        if magic != _GREETING_MAGIC or not hmac.compare_digest(token, self._token):
            return
        connection.send(_ANSWER.pack(_GREETING_MAGIC, self._host.number))
        self._host.join(rank, incarnation, lambda order: connection.send(encode(order)))
        with self._lock:
            before, self._of_rank[rank] = self._of_rank.get(rank), connection
        if before is not None:
            before.break_off()  # One that lives after all connects again.
        try:
            while True:
                word = decode(Word, connection.read_frame())
                if (word.rank, word.incarnation) != (rank, incarnation):
                    raise CorruptData(f"rank {rank} speaks for rank {word.rank}")
                self._host.hear(word)
        finally:
            self._host.leave(rank, incarnation)


class ReplicaLink(Closing):
    """Connects a rank to its coordinator, again and again, until it is closed.

    Args:
        member: of the rank.
        address: of the coordinator's server; asked for before each attempt, as it may move.
        token: 32 bytes.
        rank: of the member.
        incarnation: of the member's process.
    """

    def __init__(
        self,
        member: ReplicaMember,
        address: Callable[[], str],
        token: bytes,
        *,
        rank: int,
        incarnation: int,
    ) -> None:
        if len(token) != TOKEN_BYTES:
            raise InvalidArgument(f"a token has {TOKEN_BYTES} bytes")
        self._member, self._address, self._token = member, address, token
        self._greeting = _GREETING.pack(_GREETING_MAGIC, token, rank, incarnation)
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards the connection
        self._connection: _Connection | None = None
        self._threads = [
            Thread(run, name=f"rose-replica-{name}", on_failure=lambda _: self._hang_up())
            for name, run in (("link", self._run), ("look", self._look))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Hang up and join the threads; a version that is held goes back."""
        self._hang_up()
        for thread in self._threads:
            thread.join()

    def _hang_up(self) -> None:
        self._stop.set()
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.break_off()

    def _look(self) -> None:
        """See to the member's deadlines, also while nobody is there to order anything."""
        while not self._stop.wait(TICK_S):
            self._member.look()

    def _run(self) -> None:
        pause_s = _BACKOFF_S
        while not self._stop.is_set():
            if self._has_followed():
                pause_s = _BACKOFF_S
            else:
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, _BACKOFF_MAX_S)

    def _has_followed(self) -> bool:
        with suppress(CorruptData, InvalidArgument, Unavailable):
            self._follow()
            return True
        return False

    def _follow(self) -> None:
        """Connect and take orders; returns when a connection that had begun has ended.

        Raises:
            InvalidArgument: the address is not on loopback.
            Unavailable: nobody is there, or it does not answer.
        """
        where = loopback(self._address())
        try:
            connected = socket.create_connection(where, SILENCE_S)
        except OSError as error:
            raise Unavailable(f"nobody coordinates the replica there: {error}") from error
        connection = _Connection(connected)
        with self._lock:
            self._connection = connection
        try:
            connection.send(self._greeting)
            magic, number = _ANSWER.unpack(connection.read(_ANSWER.size))
            if magic != _GREETING_MAGIC:
                raise CorruptData("these bytes are no coordinator's answer")
            self._member.met(number, lambda word: connection.send(encode(word)))
            with suppress(CorruptData, Unavailable):
                while not self._stop.is_set():
                    self._member.hear(decode(Order, connection.read_frame()))
        finally:
            self._member.lost()
            with self._lock:
                self._connection = None
            connection.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
