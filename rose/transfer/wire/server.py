"""The weight server: offers versions to other processes, and with TLS also to other machines."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, TypeAlias

from rose.closing import Closing, Once
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.manifest import Manifest, UpdateKey
from rose.transfer.publishing.shelf import Shelf
from rose.transfer.source import NOTHING_KNOWN
from rose.transfer.wire import messages
from rose.transfer.wire.chunk_plane import ChunkServer
from rose.transfer.wire.memory_door import MemoryDoor
from rose.transfer.wire.peers import Peers
from rose.transfer.wire.security import Security, TlsFiles
from rose.transfer.wire.token_server import TokenServer, unary
from rose.units import MIB

# A page that a slow link carries within `CALL_S` of a client. A single manifest that is larger gets
# a page of its own.
PAGE_BYTES: Final = 8 * MIB
# Largest encoded sizes: of a manifest without columns, of a chunk, of a digest.
_HEADER_BYTES: Final = 2048
_CHUNK_BYTES: Final = 5 + 5 + 10 + 32 + 16
_DIGEST_BYTES: Final = 16


def page(
    manifests: Sequence[Manifest], *, bytes_max: int = PAGE_BYTES
) -> tuple[tuple[Manifest, ...], bool]:
    """Return the first manifests that fit, at least one, and whether more follow."""
    nbytes = 0
    for count, one in enumerate(manifests):
        nbytes += _HEADER_BYTES
        nbytes += _CHUNK_BYTES * len(one.chunks) + _DIGEST_BYTES * len(one.tile_digests)
        if nbytes > bytes_max and count > 0:
            return tuple(manifests[:count]), True
    return tuple(manifests), False


_LOG: Final = logging.getLogger(__name__)
WAIT_MAX_S: Final = 10.0
# Receivers that wait at the same time, each in a thread. The trainer's process has four chunk
# connections for each, so all of them fit into 1,024 descriptors.
RECEIVERS_MAX: Final = 128
# Threads for the other calls, so that they never wait for a receiver that waits.
_CALLS_MAX: Final = 16
# Answers a call of a rank of a sharded trainer or engine.
Gathering: TypeAlias = Callable[[bytes], bytes]


class _Answers:
    """The methods of a weight server. Threads call them, and keep nothing else alive."""

    def __init__(
        self, log: Shelf, peers: Peers, chunk_port: int, gathering: Gathering | None
    ) -> None:
        self._log, self._peers, self._chunk_port = log, peers, chunk_port
        self._gathering = gathering
        self._is_closing = threading.Event()
        self._lock = threading.Lock()  # guards the two below
        self._waiting = 0
        # The last reply and its bytes: many receivers wait for the same version.
        self._last: tuple[object, bytes] = (None, b"")

    def close(self) -> None:
        """End all waits."""
        self._is_closing.set()
        self._log.wake()

    def hello(self, _: messages.Empty) -> messages.HelloReply:
        return self._peers.hello(self._chunk_port)

    def wait(self, request: messages.WaitRequest) -> messages.ManifestsReply:
        with self._place():
            return self._waited(request)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Count a waiting receiver during the body.

        Raises:
            Unavailable: there are too many.
        """
        with self._lock:
            if self._waiting == RECEIVERS_MAX:
                raise Unavailable(
                    f"{RECEIVERS_MAX} receivers wait at this server already, the most that it "
                    f"serves: let further receivers follow a `rose relay`"
                )
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _waited(self, request: messages.WaitRequest) -> messages.ManifestsReply:
        timeout_s = min(max(request.timeout_ms / 1000, 0.0), WAIT_MAX_S)
        if request.after_base_n is None:
            is_over = self._is_closing.is_set
            after_n = request.after_n
            if request.run and self._served_run() not in {"", request.run}:
                after_n = NOTHING_KNOWN  # numbers of another run say nothing about this one
            manifests = self._log.wait_manifests(after_n, timeout_s, is_over=is_over)
        else:
            last = UpdateKey(request.after_n, request.after_base_n)
            known = self._log.wait_manifests(request.after_n - 1, 0)
            manifests = [one for one in known if one.key > last]
        some, is_more = page(manifests)
        if some and request.run not in {"", run := some[-1].version.run}:
            _LOG.warning(
                "a receiver that followed run %s comes to run %s, and joins it anew",
                request.run,
                run,
            )
        return messages.ManifestsReply(some, self._chunk_port, is_more)

    def _served_run(self) -> str:
        """Return the run of the newest version; "" without versions."""
        newest = self._log.manifests_after(self._log.newest_n - 1)
        return newest[-1].version.run if newest else ""

    def encode(self, reply: object) -> bytes:
        """Encode a reply, unless the last one was the same."""
        with self._lock:
            if self._last[0] != reply:
                self._last = reply, messages.encode(reply)
            return self._last[1]

    def snapshot(self, request: messages.SnapshotRequest) -> messages.ManifestsReply:
        snapshot = self._log.snapshot(request.n, request.tiles)
        return messages.ManifestsReply(() if snapshot is None else (snapshot,), self._chunk_port)

    def report(self, request: messages.ReportRequest) -> messages.Empty:
        self._log.report(request.receiver, request.n, request.is_match, request.digest)
        return messages.Empty()

    def gather(self, request: messages.GatherWords) -> messages.GatherWords:
        if self._gathering is None:
            raise InvalidArgument(
                "shards= needs the address of a publisher whose ranks publish with shards=, and "
                "not of a relay or of a publisher of whole tensors"
            )
        with self._place():
            return messages.GatherWords(self._gathering(request.words))


class WeightServer(Closing):
    """Serves one log until it is closed or dropped: control by gRPC, chunks by TCP.

    `serve` makes it. Without the token a peer learns nothing on either port.
    """

    def __init__(  # noqa: PLR0917  (`serve` is the only caller)
        self,
        log: Shelf,
        host: str,
        port: int,
        security: Security,
        peers: Peers,
        gathering: Gathering | None = None,
    ) -> None:
        self._security = security
        self.peers = peers
        self._once = Once()
        with ExitStack() as undo:
            self._chunks = ChunkServer(log, security.token, host, tls=security.tls)
            undo.callback(self._chunks.close)
            answers = _Answers(log, peers, self._chunks.port, gathering)
            server = TokenServer(
                "rose-weights",
                host,
                port,
                security,
                messages.SERVICE,
                methods={
                    "Hello": unary(messages.Empty, answers.hello),
                    "Wait": unary(messages.WaitRequest, answers.wait, answers.encode),
                    "Snapshot": unary(messages.SnapshotRequest, answers.snapshot),
                    "Report": unary(messages.ReportRequest, answers.report),
                    "Gather": unary(messages.GatherWords, answers.gather),
                },
                calls_max=RECEIVERS_MAX + _CALLS_MAX,
                request_bytes_max=messages.REQUEST_BYTES_MAX,
                reply_bytes_max=messages.REPLY_BYTES_MAX,
            )
            undo.callback(server.close)
            undo.callback(answers.close)
            if log.shared is not None:
                with suppress(OSError):  # without a door, receivers of this host pull chunks
                    undo.enter_context(MemoryDoor(log.shared, security.token, self._chunks.port))
            self._undo = undo.pop_all()
        self.address: Final = server.address
        self._once.when_dropped(self, self._undo.close)
        server.start()

    @property
    def longest_rtt_ms(self) -> float:
        """Return the longest round trip to a receiver, in ms; 0 before one has come."""
        return self._chunks.longest_rtt_ms

    @property
    def token(self) -> str:
        """Return the token that receivers must present, in hexadecimal digits."""
        return self._security.token.hex()

    def close(self) -> None:
        """Break off all calls and join all threads; the log is unchanged."""
        self._once(self._undo.close)


def serve(
    log: Shelf,
    address: str = "127.0.0.1:0",
    *,
    token: str | None = None,
    tls: TlsFiles | None = None,
    peers: Peers | None = None,
    gathering: Gathering | None = None,
) -> WeightServer:
    """Serve a log.

    Args:
        log: shelf to serve: the publisher's log, or a relay.
        address: host and port, on loopback unless `tls` is given; port 0 for any free port.
        token: 64 hexadecimal digits; None makes a new token. For a restarted trainer, pass the old
            port and token, so that receivers find it.
        tls: certificates for both sides.
        peers: the server's identity.
        gathering: function that answers the ranks of sharded trainers and engines.

    Raises:
        InvalidArgument: the address is not on loopback and there is no `tls`, the token is invalid,
            or a certificate is unusable.
        Unavailable: the port is taken.
    """
    security = Security.of(token, tls)
    host, port = security.place(address)
    known = Peers() if peers is None else peers
    return WeightServer(log, host, port, security, known, gathering)
