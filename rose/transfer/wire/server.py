"""The weight server: offers versions to other processes, and with TLS also to other machines."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, TypeAlias

from rose.closing import Closing, Once
from rose.errors import InvalidArgument
from rose.transfer.manifest import Manifest, UpdateKey
from rose.transfer.publishing.shelf import Shelf
from rose.transfer.wire import messages
from rose.transfer.wire.chunk_plane import ChunkServer
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


WAIT_MAX_S: Final = 10.0
# Each waiting receiver takes a thread.
RECEIVERS_MAX: Final = 32


# Answers a call of a rank of a sharded trainer or engine.
Gathering: TypeAlias = Callable[[bytes], bytes]


class WeightServer(Closing):
    """Serves one log until it is closed: control by gRPC, chunks by TCP.

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
        self._log, self._gathering = log, gathering
        self._security = security
        self.peers = peers
        self._once = Once()
        self._is_closing = threading.Event()
        self._server = TokenServer(
            "rose-weights",
            host,
            port,
            security,
            messages.SERVICE,
            methods={
                "Hello": unary(messages.Empty, self._hello),
                "Wait": unary(messages.WaitRequest, self._wait),
                "Snapshot": unary(messages.SnapshotRequest, self._snapshot),
                "Report": unary(messages.ReportRequest, self._report),
                "Gather": unary(messages.GatherWords, self._gather),
            },
            calls_max=RECEIVERS_MAX,
            request_bytes_max=messages.REQUEST_BYTES_MAX,
            reply_bytes_max=messages.REPLY_BYTES_MAX,
        )
        with ExitStack() as undo:
            undo.callback(self._server.close)
            self._chunks = ChunkServer(log, security.token, host, tls=security.tls)
            undo.pop_all()
        self.address: Final = self._server.address
        self._server.start()

    @property
    def token(self) -> str:
        """Return the token that receivers must present, in hexadecimal digits."""
        return self._security.token.hex()

    def close(self) -> None:
        """Break off all calls and join all threads; the log is unchanged."""
        self._once(self._close)

    def _close(self) -> None:
        self._is_closing.set()
        self._log.wake()
        self._server.close()
        self._chunks.close()

    def _hello(self, _: messages.Empty) -> messages.HelloReply:
        return self.peers.hello(self._chunks.port)

    def _wait(self, request: messages.WaitRequest) -> messages.ManifestsReply:
        timeout_s = min(max(request.timeout_ms / 1000, 0.0), WAIT_MAX_S)
        is_over = self._is_closing.is_set
        if request.after_base_n is None:
            manifests = self._log.wait_manifests(request.after_n, timeout_s, is_over=is_over)
        else:
            last = UpdateKey(request.after_n, request.after_base_n)
            known = self._log.wait_manifests(request.after_n - 1, 0)
            manifests = [one for one in known if one.key > last]
        some, is_more = page(manifests)
        return messages.ManifestsReply(some, self._chunks.port, is_more)

    def _snapshot(self, request: messages.SnapshotRequest) -> messages.ManifestsReply:
        snapshot = self._log.snapshot(request.n, request.tiles)
        return messages.ManifestsReply(() if snapshot is None else (snapshot,), self._chunks.port)

    def _report(self, request: messages.ReportRequest) -> messages.Empty:
        self._log.report(request.receiver, request.n, request.is_match, request.digest)
        return messages.Empty()

    def _gather(self, request: messages.GatherWords) -> messages.GatherWords:
        if self._gathering is None:
            raise InvalidArgument(
                "shards= needs the address of a publisher whose ranks publish with shards=, and "
                "not of a relay or of a publisher of whole tensors"
            )
        return messages.GatherWords(self._gathering(request.words))


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
