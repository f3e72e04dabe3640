"""A remote publisher or relay, on another machine if there are certificates."""

import logging
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

import grpc

from rose.closing import Once
from rose.errors import CorruptData, InvalidArgument, RoseError, Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.source import Frames
from rose.transfer.wire import messages
from rose.transfer.wire.chunk_plane import ChunkClient
from rose.transfer.wire.credentials import failure_of, open_channel
from rose.transfer.wire.memory_door import MemoryReader, reader_of
from rose.transfer.wire.security import Security, TlsFiles, token_bytes

# Longest wait for an answer, in seconds, on top of a wait for versions. A page of manifests arrives
# in this time at 1.2 Mb/s. A server whose machine is gone is given up earlier, see `SILENCE_S`.
CALL_S: Final = 60.0


_LOG: Final = logging.getLogger(__name__)


class RemoteSource:
    """A weight server as a source.

    One thread pulls; any thread may call `follow` and `close`. A failed call changes nothing: the
    next call connects again.

    Args:
        address: host and port of the server.
        token: token of the server.
        tls: certificates for both sides; without them the server must be on this machine.

    Raises:
        InvalidArgument: see `follow`.
    """

    def __init__(self, address: str, token: str, *, tls: TlsFiles | None = None) -> None:
        self._tls = tls
        self._once = Once()
        self._lock = threading.Lock()  # guards the fields below; not held during waits
        self._channel: Any = None
        self._calls: set[Any] = set()  # running calls
        self._chunks: ChunkClient | None = None
        self._chunk_port = 0
        # The memory behind the door of a chunk port, None if there is none on this host.
        self._memory: tuple[int, MemoryReader | None] | None = None
        self._run = ""  # run of the manifests that came last
        self._is_closed = False
        self.follow(address, token)

    def follow(self, address: str, token: str) -> None:
        """Use another server from the next call on; a running call breaks off.

        Raises:
            InvalidArgument: the address is not on loopback and there are no certificates, or the
                token is invalid.
        """
        if not token:
            raise InvalidArgument(f"pass the token of the weight server at {address}")
        security = Security(token_bytes(token), self._tls)
        host, port = security.place(address)
        if port == 0:
            raise InvalidArgument(f"{address} names no port: pass the address of a weight server")
        channel = open_channel(host, port, security, messages.REPLY_BYTES_MAX)
        with self._lock:
            before, self._channel = self._channel, channel
            self._host, self._token = host, security.token
            self._address = address
            self._chunk_port = 0
        if before is not None:
            before.close()
        self._hang_up()

    def close(self) -> None:
        """Disconnect; running calls break off, and later calls raise `Unavailable`."""
        self._once(self._close)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            channel = self._channel
        channel.close()
        self._hang_up()

    def break_off(self) -> None:
        """End running calls and a running pull of chunks; later ones work. Any thread may call."""
        with self._lock:
            chunks, calls = self._chunks, list(self._calls)
        for call in calls:
            call.cancel()
        if chunks is not None:
            chunks.cancel()

    def hello(self) -> messages.HelloReply:
        """Ask for the server's identity.

        Raises:
            Unavailable: no server answers.
            CorruptData: the answer is invalid.
        """
        content = self._call("Hello", messages.Empty(), CALL_S)
        reply = messages.decode(messages.HelloReply, content)
        self._found(reply.chunk_port)
        return reply

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Ask the server to wait for versions, and request further pages while there are any."""
        request = messages.WaitRequest(after_n, int(timeout_s * 1000), run=self._run)
        reply = self._manifests("Wait", request, timeout_s + CALL_S)
        manifests = list(reply.manifests)
        while reply.is_more:
            if not reply.manifests or len(manifests) > messages.MANIFESTS_MAX:
                raise CorruptData(
                    f"the weight server sent an empty page, or more than {messages.MANIFESTS_MAX} "
                    f"manifests"
                )
            last = manifests[-1].key
            reply = self._manifests("Wait", messages.WaitRequest(last.n, 0, last.base_n), CALL_S)
            if reply.manifests and reply.manifests[0].key <= last:
                raise CorruptData("the weight server sent a manifest twice")
            manifests += reply.manifests
        if manifests:
            self._note_run(manifests[-1].version.run)
        return manifests

    def _note_run(self, run: str) -> None:
        """Tell the user that another run is served, once."""
        before, self._run = self._run, run
        if before not in {"", run}:
            _LOG.warning(
                "the weight server at %s serves run %s now, and served run %s before: these "
                "weights join it anew",
                self._address,
                run,
                before,
            )

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask the server for a snapshot."""
        reply = self._manifests("Snapshot", messages.SnapshotRequest(n, tuple(tiles)), CALL_S)
        manifests = reply.manifests
        if len(manifests) > 1:
            raise CorruptData("the weight server sent several snapshots for one request")
        return manifests[0] if manifests else None

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Send the report.

        Raises:
            InvalidArgument: the server refuses the report.
            Unavailable: the server cannot be reached.
        """
        request = messages.ReportRequest(receiver, n, is_match, digest)
        messages.decode(messages.Empty, self._call("Report", request, CALL_S))

    def gather(self, words: bytes, timeout_s: float) -> bytes:
        """Send a call of a rank; the server may wait for `timeout_s` before it answers.

        Raises:
            InvalidArgument: the server refuses the call.
            Unavailable: the server cannot be reached.
        """
        content = self._call("Gather", messages.GatherWords(words), timeout_s + CALL_S)
        return messages.decode(messages.GatherWords, content).words

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        """Request chunks; ask for the chunk port first, and again after a failure.

        A restarted server may have another chunk port. Whole tiles are read from the publisher's
        memory as long as that is on this host and they are of the version.
        """
        if self._chunk_port == 0:
            self.hello()
        if key.is_whole and (memory := self._memory_reader()) is not None:
            elsewhere = []
            for one in wanted:
                if (frame := memory.frame(one)) is None:
                    elsewhere.append(one)
                else:
                    yield one.tile, frame
            memory.forget()
            if not elsewhere:
                return
            wanted = elsewhere
        try:
            with closing(self._chunk_client().chunks(key, wanted)) as coming:
                yield from coming
        except RoseError:
            with self._lock:
                self._chunk_port = 0
            raise

    def _chunk_client(self) -> ChunkClient:
        with self._lock:
            if self._chunks is not None:
                return self._chunks
            if self._chunk_port == 0 or self._is_closed:
                raise Unavailable("the weight server did not name its chunk port")
            self._chunks = ChunkClient(self._host, self._chunk_port, self._token, tls=self._tls)
            return self._chunks

    def _memory_reader(self) -> MemoryReader | None:
        with self._lock:
            port, token = self._chunk_port, self._token
            if self._memory is None or self._memory[0] != port:
                self._memory = port, reader_of(port, token)
            return self._memory[1]

    def _hang_up(self) -> None:
        """Close the chunk connections; a running pull breaks off."""
        with self._lock:
            self._memory = None
            chunks, self._chunks = self._chunks, None
        if chunks is not None:
            chunks.close()

    def _manifests(self, method: str, request: object, timeout_s: float) -> messages.ManifestsReply:
        reply = messages.decode(messages.ManifestsReply, self._call(method, request, timeout_s))
        self._found(reply.chunk_port)
        return reply

    def _found(self, chunk_port: int) -> None:
        with self._lock:
            has_moved, self._chunk_port = self._chunk_port != chunk_port, chunk_port
        if has_moved:
            self._hang_up()

    def _call(self, method: str, request: object, timeout_s: float) -> bytes:
        message = messages.encode(request)
        with self._lock:
            if self._is_closed:
                raise Unavailable("this source is closed")
            address = self._address
            call = self._channel.unary_unary(f"/{messages.SERVICE}/{method}").future(
                message,
                timeout=timeout_s,
                metadata=((messages.TOKEN_KEY, self._token.hex()),),
            )
            self._calls.add(call)
        try:
            content: bytes = call.result()
        except grpc.FutureCancelledError as error:
            raise Unavailable(f"the call {method} to {address} was cancelled") from error
        except grpc.RpcError as error:
            raise failure_of(f"the weight server at {address}", method, error) from error
        finally:
            with self._lock:
                self._calls.discard(call)
        return content
