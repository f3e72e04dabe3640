"""A steady worker behind a server, and schedulers that connect to it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from rose.node import session
from rose.node.server import WorkerServer
from rose.scheduler import remote
from rose.scheduler.remote import RemoteWorker
from rose.scheduler.worker import WorkerEvent, WorkerKind
from tests.node.rig import no_thread_is_left
from tests.node.steady import SteadyWorker


class Node:
    """Servers and the schedulers that were let in, all closed in the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def serve(self, factory=None, **options) -> WorkerServer:
        make = factory or (lambda on_event: SteadyWorker(1, on_event))
        server = WorkerServer(make, token="secret", **options)
        self._stack.callback(server.worker.stop)
        self._stack.callback(server.close)
        return server

    def connect(
        self,
        server: WorkerServer | str,
        on_event: Callable[[WorkerEvent], None],
        *,
        token: str = "secret",
        number: int = 1,
    ) -> RemoteWorker:
        address = server if isinstance(server, str) else server.address
        worker = RemoteWorker(address, token, number, WorkerKind.DEDICATED, on_event)
        self._stack.callback(worker.close)
        return worker


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch) -> Iterator[None]:
    """Set up before, and so torn down after, all that a test uses."""
    # Nothing is silent by accident on a machine that is busy.
    monkeypatch.setattr(remote, "SILENCE_MAX_S", 60.0)
    monkeypatch.setattr(session, "SILENCE_MAX_S", 60.0)
    monkeypatch.setattr(session, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(remote, "PING_S", 0.2)
    with no_thread_is_left():
        yield


@pytest.fixture
def node() -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(stack)
