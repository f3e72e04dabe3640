"""Chunks over gRPC: the same frames as by TCP, where TCP cannot be."""

import secrets
import socket
import struct
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from rose.errors import CorruptData, DeadlineExceeded, Unavailable
from rose.transfer.manifest import CHUNK_BYTES_MAX, WHOLE, UpdateKey
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.wire import grpc_chunks
from rose.transfer.wire.calls import CALL_MAX_S
from rose.transfer.wire.grpc_chunks import CALLS_MAX, METHOD, GrpcChunks
from rose.transfer.wire.messages import TOKEN_KEY
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import WeightServer, serve
from tests.transfer import chunk_wire
from tests.transfer.chunk_frames import KEY, Kept, answering, chunk_of, is_there
from tests.transfer.worker import LONG_S, TILE, Worker, changed, eventually, weights


@pytest.fixture
def frames() -> dict[int, bytes]:
    rng = np.random.default_rng(1)
    return {
        3: rng.bytes(CHUNK_BYTES_MAX),
        1: b"x",
        **{tile: rng.bytes(99) for tile in range(9, 99)},
    }


@pytest.fixture
def server(frames: dict[int, bytes]) -> Iterator[WeightServer]:
    with serve(Kept(frames)) as one:
        yield one


@pytest.fixture
def channel(server: WeightServer) -> Iterator[grpc.Channel]:
    options = [("grpc.max_receive_message_length", grpc_chunks.MESSAGE_BYTES_MAX)]
    with grpc.insecure_channel(server.address, options=options) as one:
        yield one


def test_frames_come_bit_for_bit(
    server: WeightServer,
    channel: grpc.Channel,
    frames: dict[int, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_chunks, "CALL_BYTES", 1000)  # several calls
    client = GrpcChunks(channel, bytes.fromhex(server.token), timeout_s=LONG_S)
    wanted = [chunk_of(tile, frame) for tile, frame in frames.items()]
    got = [*client.chunks(KEY, [*wanted, chunk_of(0, b"gone")])]
    assert [tile for tile, _ in got] == [*frames, 0]
    assert {tile: frame and bytes(frame) for tile, frame in got} == {**frames, 0: None}
    assert dict(client.chunks(UpdateKey(7, WHOLE), wanted[:2])) == {3: None, 1: None}


def test_stranger_and_garbage_get_no_chunk(server: WeightServer, channel: grpc.Channel) -> None:
    stranger = GrpcChunks(channel, bytes(32), timeout_s=LONG_S)
    with pytest.raises(Unavailable, match="UNAUTHENTICATED"):
        list(stranger.chunks(KEY, [chunk_of(1, b"x")]))
    metadata = ((TOKEN_KEY, server.token),)
    for content in (b"", bytes(16), bytes(17), bytes(16 + 4 * 8193), struct.pack("<QqI", 1, -2, 0)):
        with pytest.raises(grpc.RpcError) as error:
            list(channel.unary_stream(METHOD)(content, timeout=LONG_S, metadata=metadata))
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "message",
    [
        b"",
        chunk_wire.answer(KEY, 1, 5),
        chunk_wire.answer(KEY, 1, 5) + b"123456",
        chunk_wire.answer(KEY, 1, 4) + b"1234",  # not as published
        chunk_wire.answer(KEY, 2, 5) + b"12345",
        chunk_wire.answer(UpdateKey(7, 5), 1, 5) + b"12345",
        chunk_wire.answer(KEY, 1, 5, is_kept=0) + b"12345",
        b"RASK" + chunk_wire.answer(KEY, 1, 5)[4:] + b"12345",
        None,  # and one answer too few
    ],
)
def test_answer_that_is_none_is_refused(message: bytes | None) -> None:
    def lie(_request: bytes, _context: object) -> Iterator[bytes]:
        return iter([] if message is None else [message])

    handler = grpc.unary_stream_rpc_method_handler(lie)
    with answering(METHOD, handler) as address, grpc.insecure_channel(address) as channel:
        client = GrpcChunks(channel, bytes(32), timeout_s=LONG_S)
        with pytest.raises(CorruptData):
            list(client.chunks(KEY, [chunk_of(1, b"12345")]))


class HandClock:
    at_ns = 0

    def now_ns(self) -> int:
        return self.at_ns

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps")


def test_calls_that_nobody_reads_are_bounded_in_number_and_make_room_in_time(
    frames: dict[int, bytes],
) -> None:
    clock = HandClock()
    handler = grpc_chunks.chunks_handler(Kept(frames), clock)
    options = [("grpc.max_receive_message_length", grpc_chunks.MESSAGE_BYTES_MAX)]
    with (
        answering(METHOD, handler, threads=CALLS_MAX + 1) as address,
        grpc.insecure_channel(address, options=options) as channel,
    ):
        request = struct.pack("<Qq40I", KEY.n, KEY.base_n, *[3] * 40)
        unread = [channel.unary_stream(METHOD)(request) for _ in range(CALLS_MAX)]
        for call in unread:
            next(call)  # and no more
        client = GrpcChunks(channel, bytes(32), timeout_s=LONG_S)
        wanted = [chunk_of(1, b"x")]
        for at_s in (0, CALL_MAX_S, CALL_MAX_S + 1):
            clock.at_ns = int(at_s * 1e9)
            with pytest.raises(Unavailable, match="RESOURCE_EXHAUSTED"):
                list(client.chunks(KEY, wanted))
            if at_s <= CALL_MAX_S:
                assert not any(call.done() for call in unread)
        eventually(lambda: is_there(client))


def test_server_that_is_silent_is_an_error_in_time() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        grpc.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}") as channel,
    ):
        client = GrpcChunks(channel, bytes(32), timeout_s=0.05)
        with pytest.raises((DeadlineExceeded, Unavailable)):
            list(client.chunks(KEY, [chunk_of(1, b"12345")]))


def test_receiver_falls_back_where_the_chunk_port_cannot_be_reached() -> None:
    log = VersionLog()
    publisher = RowPublisher(weights(1), "run", 1, 1, log, tile_elements=TILE)
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        closed_port = placeholder.getsockname()[1]
    with serve(log) as server:
        real, server._chunks.port = server._chunks.port, closed_port
        source = RemoteSource(server.address, server.token, timeout_s=LONG_S)
        bits = weights(1)
        with Worker(source, bits) as worker:
            for seed in range(3):
                publisher.publish(bits := changed(bits, seed))
                worker.follow(publisher.version)
                assert np.array_equal(worker.bits, bits)
            assert source._is_blocked
            server._chunks.port = real  # a new port is tried again
            publisher.publish(bits := changed(bits, 9))
            worker.follow(publisher.version)
            assert np.array_equal(worker.bits, bits)
            assert not source._is_blocked
        source.close()
        with pytest.raises(Unavailable):
            list(source.chunks(KEY, [chunk_of(1, secrets.token_bytes(3))]))
