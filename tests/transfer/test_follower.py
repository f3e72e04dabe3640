"""The threads of a relay and a receiver survive errors, and report a bug that ends them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rose.errors import InternalError
from rose.thread import Thread
from rose.transfer.manifest import Manifest, Subscription
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.relaying.relay import Relay, follow
from rose.transfer.rounds import Rounds
from rose.transfer.source import SourceAround
from tests.transfer.chain_world import KEY, Chain
from tests.transfer.worker import LONG_S, NAMELESS, TILES, eventually, row_digest


class Failing(SourceAround):
    """Raises at each wait, as often as requested."""

    error: type[BaseException] | None = None

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        if self.error is not None:
            raise self.error
        return super().wait_manifests(after_n, timeout_s)


@contextmanager
def relay(source: Failing, _: Chain) -> Iterator[Rounds]:
    made = Relay(source, store=MemoryStore())
    with follow(made) as follower:
        yield follower


@contextmanager
def receiver(source: Failing, chain: Chain) -> Iterator[Receiver]:
    held = NAMELESS, row_digest(chain.bits)
    with Receiver(source, "receiver", *held, Subscription(TILES), signing=KEY) as made:
        yield made


def thread_of(running: Rounds | Receiver) -> Thread:
    return (running if isinstance(running, Rounds) else running._rounds)._thread


BOTH = pytest.mark.parametrize("make", [relay, receiver])


@BOTH
def test_thread_goes_on_when_there_is_memory_again(make: Callable) -> None:
    chain = Chain()
    source = Failing(chain.log)
    source.error = MemoryError
    with make(source, chain) as running:
        eventually(lambda: running.failure == "MemoryError")
        source.error = None
        eventually(lambda: running.failure is None)
        assert thread_of(running).is_alive()


@BOTH
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_ended_by_a_bug_reports_it(make: Callable) -> None:
    chain = Chain()
    source = Failing(chain.log)
    source.error = InternalError
    with make(source, chain) as running:
        thread_of(running).join(LONG_S)
        assert "has ended: InternalError" in running.failure
