"""Chunks by Mooncake and NIXL: the same frames as by TCP, and whoever dies in the middle."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.transfer.manifest import CHUNK_BYTES_MAX, WHOLE, UpdateKey
from rose.transfer.movers.introduction import Introduction
from rose.transfer.movers.porter_process import PorterProcess
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.wire import mover_chunks, token_server
from rose.transfer.wire.asking import pack_ask
from rose.transfer.wire.berths import BERTHS, HALF_BYTES
from rose.transfer.wire.messages import TOKEN_KEY
from rose.transfer.wire.mover_chunks import MoverChunks
from rose.transfer.wire.offers import METHOD
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import WeightServer, serve
from tests.transfer.chunk_frames import AWAY, KEY, Kept, answering, chunk_of, is_there
from tests.transfer.movers.conftest import Library, stick
from tests.transfer.worker import LONG_S, TILE, Worker, changed, eventually, weights

THERE = Introduction(1, 2, 3, "peer").to_json()


@pytest.fixture(scope="module")
def frames() -> dict[int, bytes]:
    """Return frames that fill some halves of a berth."""
    rng = np.random.default_rng(1)
    small = {tile: rng.bytes(99) for tile in range(9, 99)}
    large = {tile: rng.bytes(CHUNK_BYTES_MAX) for tile in (300, 200, 500, 400, 600, 700, 800)}
    return {**small, **large, 1: b"x", 2: rng.bytes(CHUNK_BYTES_MAX - 1)}


@pytest.fixture
def server(library: Library, frames: dict[int, bytes]) -> Iterator[WeightServer]:
    with serve(Kept(frames), movers=[library.mover]) as one:
        yield one


@pytest.fixture
def source(library: Library, server: WeightServer) -> Iterator[RemoteSource]:
    with closing(source_of(server, library)) as one:
        yield one


def source_of(server: WeightServer, library: Library) -> RemoteSource:
    return RemoteSource(server.address, server.token, timeout_s=LONG_S, plane=library.mover)


def porter_of(server: WeightServer) -> int:
    (berths,) = server._movers.values()
    return berths._porter.pid


def test_frames_come_bit_for_bit(
    source: RemoteSource, frames: dict[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover_chunks, "CALL_BYTES", 3 * HALF_BYTES)  # several calls
    wanted = [chunk_of(tile, frame) for tile, frame in frames.items()]
    # Looked at when all have come: what is yielded is no memory that is used again.
    got = [*source.chunks(KEY, [*wanted, chunk_of(0, b"gone")])]
    assert [tile for tile, _ in got] == [*frames, 0]
    assert {tile: frame and bytes(frame) for tile, frame in got} == {**frames, 0: None}
    assert dict(source.chunks(UpdateKey(7, WHOLE), wanted[:2])) == {9: None, 10: None}


def test_nothing_goes_over_the_chunk_port(
    source: RemoteSource, server: WeightServer, frames: dict[int, bytes]
) -> None:
    list(source.chunks(KEY, [chunk_of(tile, frame) for tile, frame in frames.items()]))
    assert server._chunks._plane.sent_bytes_total == 0
    assert source._chunks is None


def test_stranger_learns_nothing(library: Library, server: WeightServer) -> None:
    stranger = RemoteSource(server.address, "ab" * 32, timeout_s=LONG_S, plane=library.mover)
    with closing(stranger), pytest.raises(Unavailable, match="UNAUTHENTICATED"):
        list(stranger.chunks(KEY, [chunk_of(1, b"x")]))


def test_garbage_is_refused_and_leaves_no_berth_taken(
    library: Library, server: WeightServer, source: RemoteSource
) -> None:
    metadata = ((TOKEN_KEY, server.token),)
    name = library.mover.encode()
    too_much = pack_ask(KEY, [chunk_of(200, b"x"), chunk_of(300, b"x"), chunk_of(400, b"x")])
    refused = grpc.StatusCode.INVALID_ARGUMENT
    with grpc.insecure_channel(server.address) as channel:
        for asks, code in [
            ([name, b""], refused),
            ([name, bytes(17)], refused),
            ([name, too_much], refused),
            ([name, pack_ask(KEY, [chunk_of(AWAY, b"x")])], grpc.StatusCode.UNAVAILABLE),
            ([b"\xff"], grpc.StatusCode.FAILED_PRECONDITION),
            ([], grpc.StatusCode.FAILED_PRECONDITION),
        ] * BERTHS:
            call = channel.stream_stream(METHOD)(iter(asks), timeout=LONG_S, metadata=metadata)
            with pytest.raises(grpc.RpcError) as error:
                list(call)
            assert error.value.code() is code
    assert dict(source.chunks(KEY, [chunk_of(1, b"x")])) == {1: b"x"}


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [b"nonsense"],
        [THERE],  # and no offer
        [THERE, bytes(8)],
        [THERE, bytes(8 + 2 * 4)],
        [THERE, bytes(8) + (4).to_bytes(4, "little")],  # not as published
    ],
)
def test_answer_that_is_none_is_refused(
    answers: Sequence[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # None is needed: all of this is seen before anything is read.
    monkeypatch.setattr(MoverChunks, "_porter_to", lambda *_: None)
    handler = grpc.stream_stream_rpc_method_handler(lambda _asks, _context: iter(answers))
    with (
        answering(METHOD, handler) as address,
        grpc.insecure_channel(address) as channel,
        MoverChunks(channel, bytes(32), "nixl", timeout_s=LONG_S) as client,
        pytest.raises(CorruptData),
    ):
        list(client.chunks(KEY, [chunk_of(1, b"12345")]))


def test_as_many_receive_at_a_time_as_there_are_berths(
    library: Library, server: WeightServer, frames: dict[int, bytes]
) -> None:
    metadata = ((TOKEN_KEY, server.token),)
    hold = threading.Event()

    def asks() -> Iterator[bytes]:
        yield library.mover.encode()
        hold.wait(LONG_S)

    with grpc.insecure_channel(server.address) as channel:
        held = [
            channel.stream_stream(METHOD)(asks(), timeout=LONG_S, metadata=metadata)
            for _ in range(BERTHS)
        ]
        for call in held:
            Introduction.from_json(next(call))
        with closing(source_of(server, library)) as source:
            with pytest.raises(Unavailable, match="RESOURCE_EXHAUSTED"):
                list(source.chunks(KEY, [chunk_of(1, b"x")]))
            held[0].cancel()
            eventually(lambda: is_there(source))
        hold.set()


@pytest.mark.parametrize("whose", ["receiver", "server"])
def test_what_came_before_a_porter_was_killed_is_good_and_the_rest_comes_after(
    source: RemoteSource, server: WeightServer, frames: dict[int, bytes], whose: str
) -> None:
    wanted = [chunk_of(tile, frame) for tile, frame in frames.items()]
    came: dict[int, bytes] = {}
    pids = []

    def pull() -> None:
        missing = [chunk for chunk in wanted if chunk.tile not in came]
        with closing(source.chunks(KEY, missing)) as coming:
            for tile, frame in coming:
                assert frame is not None
                came[tile] = bytes(frame)
                if not pids:
                    assert source._mover is not None
                    assert source._mover._porter is not None
                    pid = source._mover._porter.pid if whose == "receiver" else porter_of(server)
                    pids.append(pid)
                    os.kill(pid, signal.SIGKILL)

    with pytest.raises(Unavailable):
        pull()
    assert 0 < len(came) < len(wanted)
    pull()
    assert came == frames
    assert porter_of(server) not in pids


@pytest.mark.parametrize("whose", ["receiver", "server"])
def test_porter_that_died_between_two_calls_costs_no_failure(
    source: RemoteSource, server: WeightServer, whose: str
) -> None:
    for _ in range(2):
        assert dict(source.chunks(KEY, [chunk_of(1, b"x")])) == {1: b"x"}
        assert source._mover is not None
        assert source._mover._porter is not None
        (berths,) = server._movers.values()
        porter = source._mover._porter if whose == "receiver" else berths._porter
        os.kill(porter.pid, signal.SIGKILL)
        eventually(lambda porter=porter: not porter.is_alive)  # type: ignore[misc]


def test_server_that_stalls_is_an_error_in_time(
    library: Library, server: WeightServer, frames: dict[int, bytes]
) -> None:
    with closing(source_of(server, library)) as source:
        list(source.chunks(KEY, [chunk_of(1, b"x")]))  # its porter is there
        assert source._mover is not None
        source._mover._timeout_s = 0.5
        os.kill(porter_of(server), signal.SIGSTOP)
        with pytest.raises((DeadlineExceeded, Unavailable)):
            list(source.chunks(KEY, [chunk_of(tile, frames[tile]) for tile in (200, 300)]))
        os.kill(porter_of(server), signal.SIGCONT)
        source._mover._timeout_s = LONG_S
        # NIXL ends a porter whose reader died in the middle; the next call finds another.
        eventually(lambda: is_there(source))


def test_closing_from_another_thread_ends_a_read(
    library: Library, server: WeightServer, frames: dict[int, bytes]
) -> None:
    source = source_of(server, library)
    list(source.chunks(KEY, [chunk_of(1, b"x")]))
    os.kill(porter_of(server), signal.SIGSTOP)
    caught: list[BaseException] = []

    def pull() -> None:
        try:
            list(source.chunks(KEY, [chunk_of(200, frames[200])]))
        except Unavailable as error:
            caught.append(error)

    thread = threading.Thread(target=pull)
    thread.start()
    assert source._mover is not None
    porter = source._mover._porter
    assert porter is not None
    eventually(porter._hearing.locked)
    source.close()
    thread.join(LONG_S)
    assert len(caught) == 1
    os.kill(porter_of(server), signal.SIGCONT)
    with pytest.raises(Unavailable):
        list(source.chunks(KEY, [chunk_of(1, b"x")]))


def starting_porter(source: RemoteSource) -> PorterProcess | None:
    """Return the porter of a receiver that waits for it."""
    porter = source._mover and source._mover._porter
    return porter if porter is not None and porter._hearing.locked() else None


@pytest.mark.parametrize("ends", [RemoteSource.close, RemoteSource.break_off])
def test_receiver_waits_no_longer_for_its_porter_than_it_is_wanted(
    source: RemoteSource,
    ends: Callable[[RemoteSource], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as stuck:
            stick(tmp_path, stuck)
            pulled = pool.submit(lambda: list(source.chunks(KEY, [chunk_of(1, b"x")])))
            eventually(lambda: starting_porter(source) is not None)
            ends(source)
        with pytest.raises(Unavailable, match="was closed"):
            pulled.result(LONG_S)
    if ends is RemoteSource.break_off:
        assert dict(source.chunks(KEY, [chunk_of(1, b"x")])) == {1: b"x"}


def test_server_is_closed_although_its_porter_never_starts_again(
    source: RemoteSource, server: WeightServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_server, "CLOSE_S", LONG_S)
    (berths,) = server._movers.values()
    os.kill(porter_of(server), signal.SIGKILL)
    eventually(lambda: not berths._porter.is_alive)
    with ThreadPoolExecutor(2) as pool:
        with monkeypatch.context() as stuck:
            stick(tmp_path, stuck)
            pulled = pool.submit(lambda: list(source.chunks(KEY, [chunk_of(1, b"x")])))
            eventually(lambda: berths._porter.is_alive and berths._porter._hearing.locked())
            pool.submit(server.close).result(LONG_S / 4)
        with pytest.raises(Unavailable):
            pulled.result(LONG_S)


def test_receiver_follows_and_survives_every_death(library: Library) -> None:
    log = VersionLog()
    publisher = RowPublisher(weights(1), "run", 1, 1, log, tile_elements=TILE)
    server = serve(log, movers=[library.mover])
    address, token = server.address, server.token
    bits = weights(1)
    source = source_of(server, library)
    with Worker(source, bits) as worker:
        for seed in range(4):
            publisher.publish(bits := changed(bits, seed))
            worker.follow(publisher.version)
            assert np.array_equal(worker.bits, bits)
            if seed == 0:
                os.kill(porter_of(server), signal.SIGKILL)
            elif seed == 1:
                assert source._mover is not None
                assert source._mover._porter is not None
                os.kill(source._mover._porter.pid, signal.SIGKILL)
            elif seed == 2:
                server.close()
                server = serve(log, address, token=token, movers=[library.mover])
    source.close()
    server.close()


def test_mover_that_is_not_offered_is_said(library: Library, frames: dict[int, bytes]) -> None:
    with serve(Kept(frames)) as server, closing(source_of(server, library)) as source:
        with pytest.raises(Unavailable, match=f"--offer {library.mover}"):
            list(source.chunks(KEY, [chunk_of(1, b"x")]))
        # And nothing was tried instead: who chose a mover wants to know.
        assert source._chunks is None


def test_closed_server_leaves_no_porter(library: Library, frames: dict[int, bytes]) -> None:
    with serve(Kept(frames), movers=[library.mover]) as server:
        pid = porter_of(server)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(Unavailable):
        next(iter(server._movers.values()))._take()


def test_address_of_another_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, stand_ins: None
) -> None:
    tls: Any = SimpleNamespace()
    for mover in ("mooncake", "nixl"):
        for address in ("10.0.0.1:1", "0.0.0.0:0", "[::]:0"):
            monkeypatch.setattr("rose.transfer.wire.security.check_files", lambda _: None)
            # Certificates make such an address one that may be, but not for a mover.
            with pytest.raises(InvalidArgument, match=f"{mover} neither encrypts"):
                serve(VersionLog(), address, tls=tls, movers=[mover])
            with pytest.raises(InvalidArgument, match=f"{mover} neither encrypts"):
                RemoteSource(address, "ab" * 32, tls=tls, plane=mover)
