"""Receivers of the same user on the same host read a publisher's memory; others pull chunks."""

import gc
import mmap
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rose.transfer.manifest import Manifest, Subscription, Version
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.publishing.shadow_memory import NOWHERE, ShadowMemory
from rose.transfer.receiving.puller import Puller
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.tiles import Row
from rose.transfer.wire import memory_door
from rose.transfer.wire import server as weight_server
from rose.transfer.wire.memory_door import MemoryDoor, MemoryReader, reader_of
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import WeightServer, serve
from tests.transfer.worker import TILES, changed, eventually, weights, whole_row


def publisher_of(log: VersionLog, signing: Signing = UNSIGNED) -> Publisher:
    bits = weights(1)
    memory = ShadowMemory([bits])
    shadow = Contributor(Row(memory.copy(bits), TILES), TILES)
    return Publisher([shadow], TILES, Version("r", 1, 1), log, signing=signing, memory=memory)


@pytest.fixture
def publisher() -> Publisher:
    return publisher_of(VersionLog())


@pytest.fixture
def server(publisher: Publisher) -> Iterator[WeightServer]:
    with serve(publisher._log) as made:
        yield made


@pytest.fixture
def source(server: WeightServer) -> Iterator[RemoteSource]:
    with closing(RemoteSource(server.address, server.token)) as made:
        yield made


def reader(server: WeightServer) -> MemoryReader:
    made = reader_of(server._chunks.port, bytes.fromhex(server.token))
    assert made is not None
    return made


def snapshot(publisher: Publisher) -> Manifest:
    made = publisher.snapshot(None, range(len(TILES)))
    assert made is not None
    return made


def test_tiles_come_from_memory(publisher: Publisher, source: RemoteSource) -> None:
    assert np.array_equal(whole_row(source), weights(1))
    assert publisher._log.statistics().sent_bytes == 0


def test_tiles_that_changed_since_come_as_chunks(
    publisher: Publisher, source: RemoteSource
) -> None:
    fresh = weights(1)
    fresh[TILES[3].first] ^= 1
    manifest = source.snapshot(None, range(len(TILES)))
    assert manifest is not None
    publisher.publish(Row(fresh, TILES))
    frames = dict(source.chunks(manifest.key, manifest.chunks))
    for chunk in manifest.chunks:
        assert chunk.is_of(frames[chunk.tile] or b"")
    assert publisher._log.statistics().sent_bytes == manifest.chunks[3].nbytes


@pytest.mark.parametrize("why", ["token", "user", "taken", "namespace"])
def test_others_pull_chunks(
    why: str, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object) -> MemoryDoor:
        raise OSError("planted: its name is taken")

    if why == "taken":
        monkeypatch.setattr(weight_server, "MemoryDoor", taken)
    with serve(publisher._log) as server:
        if why == "user":
            monkeypatch.setattr(memory_door.os, "geteuid", lambda: os.getuid() + 1)
        if why == "namespace":
            monkeypatch.setattr(memory_door, "_name", lambda port: f"\0rose-elsewhere-{port}")
        token = bytes(32) if why == "token" else bytes.fromhex(server.token)
        assert reader_of(server._chunks.port, token) is None
        if why == "token":
            return  # with it nothing comes as chunks either
        with closing(RemoteSource(server.address, server.token)) as source:
            assert np.array_equal(whole_row(source), weights(1))
        assert publisher._log.statistics().sent_bytes > 0


def test_caller_that_says_nothing_is_hung_up_on(
    server: WeightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_door, "TIMEOUT_S", 0.1)
    port, token = server._chunks.port, bytes.fromhex(server.token)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(memory_door._name(port))
        eventually(lambda: reader_of(port, token) is not None)


def test_closed_server_has_no_door(publisher: Publisher) -> None:
    with serve(publisher._log) as server:
        kept = reader(server)
    assert reader_of(server._chunks.port, bytes.fromhex(server.token)) is None
    assert kept.frame(snapshot(publisher).chunks[0]) is not None
    assert "rose-memory-door" not in {thread.name for thread in threading.enumerate()}


def test_receivers_cannot_write_the_memory(publisher: Publisher) -> None:
    assert publisher._log.shared is not None
    fd = publisher._log.shared.fd
    with pytest.raises(OSError, match="descriptor"):
        os.pwrite(fd, b"x", 0)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            os.pwrite(again, b"x", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(again, 0)
        with pytest.raises(PermissionError):
            os.truncate(again, 0)
    finally:
        os.close(again)
    assert publisher.whole(1, 0) is not None


def test_signed_tiles_are_not_read_from_memory() -> None:
    log = VersionLog()
    publisher_of(log, Signing(b"k"))
    assert log.shared is None


def test_memory_has_the_rows_for_which_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [weights(1, 7), weights(2, 100)]
    memory = ShadowMemory(rows)
    copies = [memory.copy(row) for row in rows]
    more = memory.copy(weights(3))
    for row, copy in zip([*rows, weights(3)], [*copies, more], strict=True):
        assert np.array_equal(row, copy)
    tiles = memory.tiles([*copies, more])
    assert tiles is not None
    assert [tiles.offsets[0], tiles.offsets[2]] == [0, NOWHERE]
    assert np.array_equal(
        np.frombuffer(os.pread(tiles.fd, 200, tiles.offsets[1]), np.uint16), rows[1]
    )

    def refused(*_: object) -> int:
        raise OSError("planted: no memfd")

    monkeypatch.setattr(os, "memfd_create", refused)
    without = ShadowMemory(rows)
    assert np.array_equal(without.copy(rows[0]), rows[0])
    assert without.tiles(rows) is None


def test_reader_leaves_no_descriptor(server: WeightServer) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    made = reader(server)
    assert reader_of(server._chunks.port, bytes(32)) is None
    del made
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_memory_that_could_be_shortened_is_not_read() -> None:
    fd = os.memfd_create("loose")
    try:
        with pytest.raises(OSError, match="not sealed"):
            MemoryReader(fd, ())
    finally:
        os.close(fd)


def test_tiles_that_are_staged_do_not_change_with_the_memory(
    publisher: Publisher, source: RemoteSource
) -> None:
    puller = Puller(source, threading.Event())
    manifest = source.snapshot(None, range(len(TILES)))
    assert manifest is not None
    staged = puller.pull(manifest, Subscription(TILES))
    publisher.publish(Row(weights(2), TILES))
    assert staged is not None
    assert np.array_equal(np.concatenate(list(staged.whole.values())), weights(1))


def test_row_that_changes_is_seen_in_the_memory(publisher: Publisher, source: RemoteSource) -> None:
    fresh = changed(weights(1), 5)
    publisher.publish(Row(fresh, TILES))
    assert np.array_equal(whole_row(source), fresh)
    assert publisher._log.statistics().sent_bytes == 0
