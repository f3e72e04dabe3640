"""The weight server: many receivers at once, a limit that is named, and its end when dropped."""

import gc
import socket
import threading
from contextlib import ExitStack, closing

import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.errors import Unavailable
from rose.transfer.publishing.log import VersionLog
from rose.transfer.wire import server as server_module
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve
from tests.transfer.worker import LONG_S, TILE, Worker, changed, eventually, weights

RECEIVERS = 64


def test_sixty_four_receivers_follow_one_publisher() -> None:
    log = VersionLog()
    publisher = RowPublisher(weights(1), "run", 1, 1, log, tile_elements=TILE)
    with ExitStack() as parts:
        server = parts.enter_context(serve(log))
        workers: list[Worker] = []
        for number in range(RECEIVERS):
            source = parts.enter_context(closing(RemoteSource(server.address, server.token)))
            workers.append(parts.enter_context(Worker(source, weights(1), name=f"w{number}")))
        for seed in range(3):
            publisher.publish(bits := changed(weights(1), seed))
            for worker in workers:
                worker.follow(publisher.version)
                assert np.array_equal(worker.bits, bits)
        assert max(worker.receiver.stats.snapshots for worker in workers) == 0
        eventually(lambda: len(log.receivers()) == RECEIVERS)


def test_receiver_too_many_is_told_the_limit_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "RECEIVERS_MAX", 2)
    log = VersionLog()
    with ExitStack() as parts:
        server = parts.enter_context(serve(log))
        sources = [RemoteSource(server.address, server.token) for _ in range(3)]
        for source in sources:
            parts.enter_context(closing(source))
        waits = [
            threading.Thread(target=source.wait_manifests, args=(-1, 10.0))
            for source in sources[:2]
        ]
        for wait in waits:
            wait.start()
        eventually(lambda: server_waits(log) == 2)
        with pytest.raises(Unavailable, match=r"2 receivers wait .* follow a `rose relay`"):
            sources[2].wait_manifests(-1, 0)
        publisher = RowPublisher(weights(1), "run", 1, 1, log, tile_elements=TILE)
        for wait in waits:
            wait.join(LONG_S)
        assert sources[2].wait_manifests(-1, 0)[0].version == publisher.version


def server_waits(log: VersionLog) -> int:
    """Return the number of threads that wait for a version."""
    return len(log._changed._waiters)  # type: ignore[attr-defined]


def test_dropped_server_ends_though_receivers_wait_at_it() -> None:
    before = threading.active_count()
    log = VersionLog()
    publisher = RowPublisher(weights(1), "run", 1, 1, log, tile_elements=TILE)
    server = serve(log)
    host, _, port = server.address.rpartition(":")
    with (
        closing(RemoteSource(server.address, server.token)) as source,
        Worker(source, weights(1)) as worker,
    ):
        worker.follow(publisher.version)
        cycle: list[object] = [server]
        cycle.append(cycle)
        del server, cycle
        gc.collect()
        eventually(lambda: is_refused(host, int(port)))
    eventually(lambda: threading.active_count() == before)


def is_refused(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), LONG_S).close()
    except ConnectionRefusedError:
        return True
    return False
