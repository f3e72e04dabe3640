"""Two processes and a wire: what comes through is what was sent, and strangers learn nothing."""

import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from typing_extensions import Self

from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import WHOLE, Chunk, Manifest, UpdateKey
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.relaying.relay import Relay
from rose.transfer.source import Frame
from rose.transfer.version import Version
from rose.transfer.wire import messages
from rose.transfer.wire import server as server_module
from rose.transfer.wire.chunk_server import ANSWERERS
from rose.transfer.wire.proto import weights_pb2 as pb
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import WeightServer, page, serve
from tests.transfer import chunk_wire as wire
from tests.transfer.worker import LONG_S, TILE, TILES, Bits, Worker, changed, row_digest, weights

ROOT = Path(__file__).resolve().parents[2]
TOKEN = secrets.token_hex(32)
ONE = UpdateKey(1, 0)


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
def source_of(server: WeightServer, **knobs: float) -> Iterator[RemoteSource]:
    source = RemoteSource(server.address, server.token, **knobs)
    try:
        yield source
    finally:
        source.close()


def test_versions_come_over_the_wire_bit_for_bit(
    publisher: RowPublisher, server: WeightServer
) -> None:
    bits = weights(1)
    with source_of(server) as source, Worker(source, bits) as worker:
        for seed in range(8):
            bits = changed(bits, seed)
            publisher.publish(bits)
            worker.follow(publisher.version)
            assert np.array_equal(worker.bits, bits)
        received = worker.receiver.stats.received_bytes
    assert publisher._log.statistics().sent_bytes == received


def test_seed_comes_over_the_wire(publisher: RowPublisher, server: WeightServer) -> None:
    publisher.publish(bits := changed(weights(1), 1))
    with source_of(server) as source, Worker(source, weights(9)) as worker:
        worker.follow(publisher.version)
        assert np.array_equal(worker.bits, bits)
        assert worker.receiver.stats.seeds == 1


def test_report_comes_back(publisher: RowPublisher, server: WeightServer) -> None:
    publisher.publish(changed(weights(1), 1))
    with source_of(server) as source:
        source.report("far", 2, False, (2**64 - 1, 3))
    said = publisher._log.receivers()["far"]
    assert (said.n, said.is_match, said.digest) == (2, False, (2**64 - 1, 3))


@pytest.mark.parametrize("error", [MemoryError(), Unavailable("planted")])
def test_who_answers_for_chunks_goes_on_after_a_chunk_that_could_not_be_looked_up(
    error: Exception,
) -> None:
    class Narrow(VersionLog):
        looks = 0

        def chunk(self, key: UpdateKey, tile: int) -> bytes:
            self.looks += 1
            if self.looks <= 2 * ANSWERERS:
                raise error
            return b"x" * 10

    with serve(Narrow()) as server, source_of(server) as source:
        source.wait_manifests(-1, 0)
        for number in range(4):
            wanted = [Chunk(tile, 10, 1, bytes(32), (0, 0)) for tile in range(ANSWERERS)]
            frames = dict(source.chunks(UpdateKey(number + 1, number), wanted)).values()
            assert all((frame is None) == (number < 2) for frame in frames)
        assert all(one.is_alive() for one in server._chunks._threads)


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


def test_seed_that_does_not_fit_and_a_chunk_that_is_gone_are_answers() -> None:
    with (
        serve(publisher_of(VersionLog(bytes_max=300))._log) as server,
        source_of(server) as source,
    ):
        with pytest.raises(Unavailable, match="RESOURCE_EXHAUSTED"):
            source.seed(None, range(len(TILES)))
        assert source.seed(77, ()) is None
        assert len(source.wait_manifests(-1, 0)) == 1
        assert frame_of(source, UpdateKey(77, 76)) is None
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


@pytest.mark.parametrize("told", ["nothing", "the same"])
def test_a_server_that_has_more_without_end_is_not_asked_for_ever(
    publisher: RowPublisher,
    server: WeightServer,
    monkeypatch: pytest.MonkeyPatch,
    told: str,
) -> None:
    publisher.publish(changed(weights(1), 1))
    first = tuple(publisher._log.wait_manifests(-1, 0))[:1]
    replies = 0

    def endless(_: object) -> tuple[tuple[Manifest, ...], bool]:
        nonlocal replies
        replies += 1
        return () if told == "nothing" else first, True

    monkeypatch.setattr(server_module, "page", endless)
    with source_of(server) as source, pytest.raises(CorruptData):
        source.wait_manifests(-1, 0)
    assert replies <= 2


class Stuck(VersionLog):
    """A log that cannot find a chunk for a long time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.is_let_go = threading.Event(), threading.Event()

    def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
        self.is_asked.set()
        assert self.is_let_go.wait(LONG_S)
        return super().chunk(key, tile)


def test_a_receiver_that_is_closed_does_not_wait_for_a_chunk_that_does_not_come() -> None:
    log = Stuck()
    publisher = publisher_of(log)
    with serve(log) as server, source_of(server, timeout_s=LONG_S) as source:
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


def test_other_addresses_than_loopback_are_refused() -> None:
    for address in ["0.0.0.0:0", "10.1.2.3:80", "localhost:0", "127.0.0.1", "[::]:0", ":1", "x"]:
        with pytest.raises(InvalidArgument, match="loopback"):
            serve(VersionLog(), address)
        with pytest.raises(InvalidArgument, match="loopback"):
            RemoteSource(address, TOKEN)
    for token in ["", "00", "zz" * 32, TOKEN + "00"]:
        with pytest.raises(InvalidArgument, match="token"):
            serve(VersionLog(), token=token)
        with pytest.raises(InvalidArgument, match="token"):
            RemoteSource("127.0.0.1:1", token)


def test_port_that_is_taken_is_said(server: WeightServer) -> None:
    with pytest.raises(Unavailable):
        serve(VersionLog(), server.address)


# ---- strangers


def test_wrong_token_learns_nothing_by_grpc(publisher: RowPublisher, server: WeightServer) -> None:
    publisher.publish(changed(weights(1), 1))
    stranger = RemoteSource(server.address, TOKEN)
    with pytest.raises(Unavailable, match="another token"):
        stranger.wait_manifests(-1, 0)
    stranger.close()
    with grpc.insecure_channel(server.address) as channel:
        codes = set()
        for method in [f"/{messages.SERVICE}/Wait", f"/{messages.SERVICE}/Nothing"]:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(method)(b"", timeout=LONG_S)
            codes.add((error.value.code(), error.value.details()))
    assert codes == {(grpc.StatusCode.UNAUTHENTICATED, "")}


@contextmanager
def chunk_connection(server: WeightServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server._chunks.port), LONG_S) as connection:
        yield connection


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_wrong_token_learns_nothing_by_tcp(publisher: RowPublisher, server: WeightServer) -> None:
    publisher.publish(changed(weights(1), 1))
    with chunk_connection(server) as connection:
        connection.sendall(wire.greeting(bytes(32)) + wire.ask(UpdateKey(2, 1), 0))
        assert is_closed(connection)
    assert publisher._log.statistics().sent_bytes == 0


def spoiled(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]


@pytest.mark.parametrize("at", [0, 8, 12, 16, 47])
def test_greeting_that_is_not_ours_closes_the_connection(server: WeightServer, at: int) -> None:
    with chunk_connection(server) as connection:
        connection.sendall(spoiled(wire.greeting(bytes.fromhex(server.token)), at))
        assert is_closed(connection)


@pytest.mark.parametrize("at", [0, 4, 28])
def test_question_that_is_not_ours_closes_the_connection(server: WeightServer, at: int) -> None:
    with chunk_connection(server) as connection:
        connection.sendall(wire.greeting(bytes.fromhex(server.token)))
        connection.sendall(wire.ask(ONE, 0))
        with connection.makefile("rb") as reader:
            assert reader.read(wire.HELLO.size) == wire.hello()
            assert reader.read(wire.ANSWER.size) == wire.answer(ONE, 0, 0)
        connection.sendall(spoiled(wire.ask(ONE, 0), at))
        assert is_closed(connection)


def test_connection_that_is_cut_off_harms_nobody(
    publisher: RowPublisher, server: WeightServer
) -> None:
    for said in [b"", b"ROSE", wire.greeting(bytes.fromhex(server.token)) + b"RA"]:
        with chunk_connection(server) as connection:
            connection.sendall(said)
    publisher.publish(bits := changed(weights(1), 1))
    with source_of(server) as source, Worker(source, weights(1)) as worker:
        worker.follow(publisher.version)
        assert np.array_equal(worker.bits, bits)


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"\xc1", bytes(100), pb.WaitRequest(format=1).SerializeToString()],
    ids=["empty", "cut off", "no message", "another version"],
)
def test_garbage_by_grpc_is_an_error_of_who_sent_it(
    server: WeightServer, request_bytes: bytes
) -> None:
    metadata = ((messages.TOKEN_KEY, server.token),)
    with grpc.insecure_channel(server.address) as channel:
        for method in ["Hello", "Wait", "Seed", "Report"]:
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


class FakeChunks:
    """Answers each question by a function of n and tile that returns raw bytes."""

    def __init__(self, answer: Callable[[UpdateKey, int], bytes]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            # Whoever is lied to hangs up.
            with suppress(ConnectionError), connection, connection.makefile("rb") as reader:
                reader.read(wire.GREETING.size)
                connection.sendall(wire.hello())
                while len(said := reader.read(wire.ASK.size)) == wire.ASK.size:
                    key, tile = wire.read_ask(said)
                    content = self._answer(key, tile)
                    connection.sendall(content)
                    if not content.startswith(b"RANS"):
                        break

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(LONG_S)
        self._listener.close()


def header(key: UpdateKey, tile: int, nbytes: int, is_kept: int = 1) -> bytes:
    return struct.pack("<4sIQqII", b"RANS", is_kept, key.n, key.base_n, tile, nbytes)


def frame_of(source: RemoteSource, key: UpdateKey) -> bytes | None:
    """Ask for tile 0."""
    chunk = Chunk(0, 5, 1, bytes(32), (0, 0))
    [(tile, frame)] = source.chunks(key, [chunk])
    assert tile == 0
    return None if frame is None else bytes(frame)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda key, tile: header(key, tile, 5 << 20), CorruptData),  # more than any chunk
        (lambda key, tile: header(key, tile, 0), CorruptData),
        (lambda key, tile: header(key, tile, 7, is_kept=0), CorruptData),
        (lambda key, tile: header(key, tile, 7, is_kept=2), CorruptData),
        # Of another question.
        (lambda key, tile: header(UpdateKey(9, key.base_n), tile, 4) + b"1234", CorruptData),
        (lambda key, tile: header(UpdateKey(key.n, 5), tile, 4) + b"1234", CorruptData),
        (lambda key, tile: header(key, tile + 1, 4) + b"1234", CorruptData),
        (lambda _, __: bytes(32), CorruptData),
        (lambda _, __: b"short", Unavailable),
        (lambda key, tile: header(key, tile, 4) + b"4567", CorruptData),  # not as published
        (lambda key, tile: header(key, tile, 5) + b"cut", DeadlineExceeded),
    ],
)
def test_answer_that_is_none_is_refused_and_the_next_call_connects_again(
    server: WeightServer, answer: Callable[[UpdateKey, int], bytes], error: type[Exception]
) -> None:
    # A connection that breaks is made again once.
    answers = iter([answer] * (2 if error is Unavailable else 1))

    def each(key: UpdateKey, tile: int) -> bytes:
        return next(answers, good)(key, tile)

    with FakeChunks(each) as fake:
        real, server._chunks.port = server._chunks.port, fake.port
        with source_of(server, timeout_s=0.2 if error is DeadlineExceeded else LONG_S) as source:
            source.wait_manifests(-1, 0)
            with pytest.raises(error):
                frame_of(source, ONE)
            source._timeout_s = LONG_S
            source._hang_up()
            assert frame_of(source, ONE) == b"sound"
        server._chunks.port = real


def good(key: UpdateKey, tile: int) -> bytes:
    return header(key, tile, 5) + b"sound"


def test_chunk_damaged_on_the_wire_is_fetched_again(
    publisher: RowPublisher, server: WeightServer
) -> None:
    publisher.publish(bits := changed(weights(1), 1))
    asked: list[int] = []

    def answer(key: UpdateKey, tile: int) -> bytes:
        asked.append(tile)
        frame = publisher._log.chunk(key, tile) or b""
        said = wire.answer(key, tile, len(frame)) + frame
        return spoiled(said, len(said) - 3) if len(asked) == 2 else said

    with FakeChunks(answer) as fake:
        real, server._chunks.port = server._chunks.port, fake.port
        with source_of(server) as source, Worker(source, weights(1)) as worker:
            worker.follow(publisher.version)
            assert np.array_equal(worker.bits, bits)
            assert worker.receiver.stats.chunks_retried == 1
        server._chunks.port = real
    assert asked.count(asked[1]) == 2


def test_chunks_come_from_where_the_server_says_they_are_now(server: WeightServer) -> None:
    def other(key: UpdateKey, tile: int) -> bytes:
        return header(key, tile, 5) + b"other"

    real = server._chunks.port
    with FakeChunks(good) as one, FakeChunks(other) as two, source_of(server) as source:
        for fake, frame in [(one, b"sound"), (two, b"other"), (one, b"sound")]:
            server._chunks.port = fake.port
            source.wait_manifests(-1, 0)
            assert frame_of(source, ONE) == frame
    server._chunks.port = real


# ---- processes


class Program:
    """The publisher's process."""

    def __init__(self, address: str, incarnation: int, first: int, seed: int) -> None:
        arguments = [address, TOKEN, str(incarnation), str(first), str(seed)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.transfer.publisher_program", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the publisher's process ended"
        return line

    def publish(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._read())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(LONG_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def after(bits: Bits, first: int, versions: int) -> Bits:
    for n in range(first, first + versions):
        bits = changed(bits, n)
    return bits


@pytest.mark.parametrize("is_same_port", [True, False])
def test_publisher_killed_while_chunks_are_pulled(is_same_port: bool) -> None:
    half_pulled, is_dead = threading.Event(), threading.Event()

    class Slow(RemoteSource):
        def chunks(
            self, key: UpdateKey, wanted: Sequence[Chunk]
        ) -> Generator[tuple[int, Frame | None], None, None]:
            for one in wanted:  # each alone: otherwise all of them are on their way at once
                yield from super().chunks(key, [one])
                if key.n == 3 and not half_pulled.is_set():
                    half_pulled.set()
                    assert is_dead.wait(LONG_S)

    with Program("127.0.0.1:0", 1, 1, seed=1) as first:
        source = Slow(first.address, TOKEN, timeout_s=LONG_S)
        with Worker(source, weights(1)) as worker:
            assert first.publish() == 2
            worker.follow(Version("run", 1, 2))
            assert first.publish() == 3
            assert half_pulled.wait(LONG_S)
            first.kill()
            is_dead.set()
            assert worker.receiver.held == Version("run", 1, 2)
            assert np.array_equal(worker.bits, after(weights(1), 1, 1))
            address = first.address if is_same_port else "127.0.0.1:0"
            # Its checkpoint is older: other bits than the receiver's, so it must be seeded.
            with Program(address, 2, 10, seed=1) as second:
                if not is_same_port:
                    source.follow(second.address, TOKEN)
                worker.follow(Version("run", 2, 10))
                assert np.array_equal(worker.bits, weights(1))
                assert second.publish() == 11
                worker.follow(Version("run", 2, 11))
                assert np.array_equal(worker.bits, after(weights(1), 10, 1))
                assert worker.receiver.digest == row_digest(worker.bits)
                numbers = [one.version.n for one in worker.outcomes]
                assert numbers == sorted(set(numbers))
                assert 3 not in numbers
        source.close()


def test_receiver_waits_for_a_publisher_that_is_not_there_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        port = placeholder.getsockname()[1]
    source = RemoteSource(f"127.0.0.1:{port}", TOKEN)
    failed = threading.Event()
    with Worker(source, weights(1)) as worker:
        while not failed.wait(0.01):
            if worker.receiver.failure is not None:
                failed.set()
        with Program(f"127.0.0.1:{port}", 1, 1, seed=1):
            worker.follow(Version("run", 1, 1))
    source.close()


def test_source_that_is_closed_says_so(server: WeightServer) -> None:
    source = RemoteSource(server.address, server.token)
    assert len(source.wait_manifests(-1, 0)) == 1
    source.close()
    with pytest.raises(Unavailable):
        source.wait_manifests(-1, 0)
    with pytest.raises(Unavailable):
        frame_of(source, ONE)


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
    assert why == [True]  # it was told; its time was not up
