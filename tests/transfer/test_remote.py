"""Over the wire: messages arrive intact, pages end, and servers may stop or start later."""

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import grpc
import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import WHOLE, Chunk, Manifest, UpdateKey
from rose.transfer.proto import weights_pb2 as pb
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.relaying.relay import Relay
from rose.transfer.source import Frames
from rose.transfer.wire import messages
from rose.transfer.wire import remote as remote_module
from rose.transfer.wire import server as server_module
from rose.transfer.wire.messages import HelloReply, RelayPlace, TensorEntry
from rose.transfer.wire.peers import Peers
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import WeightServer, page, serve
from tests.transfer.worker import (
    LONG_S,
    TILE,
    Worker,
    changed,
    eventually,
    row_digest,
    weights,
)

TOKEN = secrets.token_hex(32)


@pytest.fixture
def publisher() -> RowPublisher:
    return publisher_of(VersionLog())


def publisher_of(log: VersionLog, incarnation: int = 1, first: int = 1) -> RowPublisher:
    return RowPublisher(weights(1), "run", incarnation, first, log, tile_elements=TILE)


@pytest.fixture
def server(publisher: RowPublisher) -> Iterator[WeightServer]:
    with serve(publisher._log) as one:
        yield one
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("rose-chunks", "rose-weights"))]


@contextmanager
def source_of(server: WeightServer) -> Iterator[RemoteSource]:
    source = RemoteSource(server.address, server.token)
    try:
        yield source
    finally:
        source.close()


def test_snapshot_comes_over_the_wire(publisher: RowPublisher, server: WeightServer) -> None:
    publisher.publish(bits := changed(weights(1), 1))
    with source_of(server) as source, Worker(source, weights(9)) as worker:
        worker.follow(publisher.version)
        assert np.array_equal(worker.bits, bits)
        assert worker.receiver.stats.snapshots == 1


def test_report_comes_back(publisher: RowPublisher, server: WeightServer) -> None:
    publisher.publish(changed(weights(1), 1))
    with source_of(server) as source:
        source.report("far", 2, False, (2**64 - 1, 3))
    answer = publisher._log.receivers()["far"]
    assert (answer.n, answer.is_match, answer.digest) == (2, False, (2**64 - 1, 3))


class Misnamed(RemoteSource):
    """A source whose reports no server takes."""

    def report(self, _receiver: str, n: int, is_match: bool, digest: Digest) -> None:
        super().report("x" * 257, n, is_match, digest)


def test_report_that_is_refused_stops_neither_a_relay_nor_a_receiver(
    publisher: RowPublisher, server: WeightServer
) -> None:
    with closing(Misnamed(server.address, server.token)) as source:
        source.wait_manifests(-1, 0)
        with pytest.raises(InvalidArgument, match="name"):
            source.report("", 1, is_match=True, digest=(0, 0))
        relay = Relay(source, store=MemoryStore())
        relay.report("r", 1, is_match=True, digest=(0, 0))
        with Worker(source, weights(1)) as worker:
            for seed in range(2):
                publisher.publish(changed(weights(1), seed))
                worker.follow(publisher.version)
        relay.round(0)
    assert relay.newest_n == publisher.version.n


def test_version_and_chunk_that_are_gone_are_answers(server: WeightServer) -> None:
    with source_of(server) as source:
        assert frame_of(source, UpdateKey(77, 76)) is None  # it asks where chunks are first
        assert source.snapshot(77, ()) is None
        assert len(source.wait_manifests(-1, 0)) == 1
        assert frame_of(source, UpdateKey(77, WHOLE)) is None


def test_more_manifests_than_fit_into_a_reply_come_in_several(
    publisher: RowPublisher, server: WeightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(5):
        publisher.publish(changed(weights(1), seed))
    replies: list[int] = []

    def small(manifests: Sequence[Manifest]) -> tuple[tuple[Manifest, ...], bool]:
        some, is_more = page(manifests, bytes_max=9000)
        replies.append(len(some))
        return some, is_more

    monkeypatch.setattr(server_module, "page", small)
    kept = publisher._log.wait_manifests(-1, 0)
    with source_of(server) as source:
        for after in (-1, 1, 3, 5):
            replies.clear()
            came = source.wait_manifests(after, LONG_S)
            assert came == [one for one in kept if one.version.n > after]
            assert sum(replies) == len(came)
        replies.clear()
        assert source.wait_manifests(-1, 0) == kept
    assert len(replies) > 1


@pytest.mark.parametrize("page_is", ["nothing", "the same"])
def test_endless_replies_of_a_server_are_bounded(
    publisher: RowPublisher,
    server: WeightServer,
    monkeypatch: pytest.MonkeyPatch,
    page_is: str,
) -> None:
    publisher.publish(changed(weights(1), 1))
    first = tuple(publisher._log.wait_manifests(-1, 0))[:1]
    replies = 0

    def endless(_: object) -> tuple[tuple[Manifest, ...], bool]:
        nonlocal replies
        replies += 1
        return () if page_is == "nothing" else first, True

    monkeypatch.setattr(server_module, "page", endless)
    with source_of(server) as source, pytest.raises(CorruptData):
        source.wait_manifests(-1, 0)
    assert replies <= 2


class Stuck(VersionLog):
    """A log that needs a long time for the answer to a method."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method
        self.is_asked, self.is_let_go = threading.Event(), threading.Event()

    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        self._wait_in("chunk")
        return super().chunk(key, tile)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:
        self._wait_in("report")
        super().report(receiver, n, is_match, digest)

    def _wait_in(self, method: str) -> None:
        if method == self._method:
            self.is_asked.set()
            assert self.is_let_go.wait(LONG_S)


@pytest.mark.parametrize("method", ["chunk", "report"])
def test_closing_a_receiver_does_not_wait_for_an_answer(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "CALL_S", LONG_S)
    log = Stuck(method)
    publisher = publisher_of(log)
    with serve(log) as server, source_of(server) as source:
        worker = Worker(source, weights(1))
        worker.commit()
        publisher.publish(changed(weights(1), 1))
        assert log.is_asked.wait(LONG_S)
        closing_it = threading.Thread(target=worker.receiver.close)
        closing_it.start()
        closing_it.join(LONG_S / 2)  # only bounds a hang: nobody lets the chunk go meanwhile
        has_closed = not closing_it.is_alive()
        log.is_let_go.set()
        closing_it.join(LONG_S)
    assert has_closed
    # Not by the server, which says after a while that it has no such chunk.
    assert worker.receiver.failure is None or "cancel" in worker.receiver.failure


def test_invalid_token_is_refused() -> None:
    for token in ["", "00", "zz" * 32, TOKEN + "00", bytes.fromhex(TOKEN)]:
        with pytest.raises(InvalidArgument, match="token"):
            serve(VersionLog(), token=token)
        with pytest.raises(InvalidArgument, match="token"):
            RemoteSource("127.0.0.1:1", token)


# ---- strangers


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"\xc1", bytes(100), pb.WaitRequest(format=1).SerializeToString()],
    ids=["empty", "cut off", "no message", "another version"],
)
def test_malformed_grpc_message_is_an_error_of_the_sender(
    server: WeightServer, request_bytes: bytes
) -> None:
    metadata = ((messages.TOKEN_KEY, server.token),)
    with grpc.insecure_channel(server.address) as channel:
        for method in ["Hello", "Wait", "Snapshot", "Report"]:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(f"/{messages.SERVICE}/{method}")(
                    request_bytes, timeout=LONG_S, metadata=metadata
                )
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(f"/{messages.SERVICE}/Wait")(
                bytes(messages.REQUEST_BYTES_MAX + 1), timeout=LONG_S, metadata=metadata
            )
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# ---- a wire that lies: the chunk plane is played by the test


def frame_of(source: RemoteSource, key: UpdateKey) -> bytes | None:
    """Ask for tile 0."""
    chunk = Chunk(0, 5, 1, bytes(32), (0, 0))
    [(tile, frame)] = source.chunks(key, [chunk])
    assert tile == 0
    return None if frame is None else bytes(frame)


# ---- servers that end


def test_publisher_that_ends_while_chunks_are_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "CALL_S", LONG_S)
    half_pulled, is_dead = threading.Event(), threading.Event()

    class Slow(RemoteSource):
        def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
            for one in wanted:  # each alone: otherwise all of them are on their way at once
                yield from super().chunks(key, [one])
                if key.n == 3 and not half_pulled.is_set():
                    half_pulled.set()
                    assert is_dead.wait(LONG_S)

    first = publisher_of(VersionLog())
    server = serve(first._log, token=TOKEN)
    source = Slow(server.address, TOKEN)
    with closing(source), Worker(source, weights(1)) as worker:
        first.publish(bits := changed(weights(1), 1))
        worker.follow(first.version)
        first.publish(changed(bits, 2))
        assert half_pulled.wait(LONG_S)
        server.close()
        is_dead.set()
        assert np.array_equal(worker.bits, bits)
        # Its checkpoint is older: other bits than the receiver's, so whole tiles must come.
        second = publisher_of(VersionLog(), incarnation=2, first=10)
        with serve(second._log, token=TOKEN) as heir:
            source.follow(heir.address, TOKEN)
            worker.follow(second.version)
            assert np.array_equal(worker.bits, weights(1))
            second.publish(bits := changed(weights(1), 10))
            worker.follow(second.version)
            assert np.array_equal(worker.bits, bits)
            assert worker.receiver.digest == row_digest(bits)
            assert 3 not in [one.version.n for one in worker.outcomes]


def test_receiver_waits_for_a_publisher_that_is_not_there_yet() -> None:
    with serve(VersionLog(), token=TOKEN) as placeholder:
        address = placeholder.address
    with closing(RemoteSource(address, TOKEN)) as source, Worker(source, weights(1)) as worker:
        eventually(lambda: worker.receiver.failure is not None)
        publisher = publisher_of(VersionLog())
        with serve(publisher._log, address, token=TOKEN):
            worker.follow(publisher.version)


def test_server_reports_its_identity() -> None:
    tensors = (TensorEntry("w", "BF16", (3, 5)), TensorEntry("scalar", "F32", ()))
    peers = Peers("trainer", layout="ab" * 32, tensors=tensors)
    with serve(VersionLog(), peers=peers) as server, source_of(server) as source:
        port = server._chunks.port
        assert source.hello() == HelloReply(
            "trainer", "publisher", "ab" * 32, port, tensors=tensors
        )
        relays = (RelayPlace("10.0.0.1:5", (0, 2)),)
        server.peers.announce("cd" * 32, relays=relays)
        assert source.hello() == HelloReply("trainer", "publisher", "cd" * 32, port, relays)
    with pytest.raises(InvalidArgument, match="role"):
        Peers("x", "stranger")


def test_closed_source_raises_unavailable(server: WeightServer) -> None:
    source = RemoteSource(server.address, server.token)
    assert len(source.wait_manifests(-1, 0)) == 1
    source.close()
    with pytest.raises(Unavailable):
        source.wait_manifests(-1, 0)
    with pytest.raises(Unavailable):
        frame_of(source, UpdateKey(1, 0))


def test_closing_the_server_ends_a_wait() -> None:
    class Watched(VersionLog):
        def wait_manifests(
            self, after_n: int, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False
        ) -> list[Manifest]:
            waiting.set()
            found = super().wait_manifests(after_n, timeout_s, is_over=is_over)
            why.append(is_over())
            return found

    why: list[bool] = []
    waiting = threading.Event()
    server = serve(publisher_of(Watched())._log)
    ended: list[object] = []

    def wait() -> None:
        with source_of(server) as source:
            try:
                ended.append(source.wait_manifests(1, LONG_S))
            except Unavailable as error:
                ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(LONG_S)
    server.close()
    thread.join(LONG_S)
    assert len(ended) == 1
    assert why == [True]  # it was woken; its time was not up


@pytest.mark.parametrize("n", [7, 3])
def test_a_run_that_begins_between_two_calls_is_offered_whatever_its_number(n: int) -> None:
    logs = VersionLog(), VersionLog()
    for log, run, first in zip(logs, ("before", "after"), (7, n), strict=True):
        RowPublisher(weights(1), run, first_version=first, incarnation=1, log=log)
    with serve(logs[0]) as first_server, source_of(first_server) as source:
        assert source.wait_manifests(-1, 0.0)[-1].version.n == 7
        with serve(logs[1]) as second_server:
            source.follow(second_server.address, second_server.token)
            assert [one.version.run for one in source.wait_manifests(7, 0.0)] == ["after"]
            assert source.wait_manifests(n, 0.0) == []
