"""A receiver that is told where to stop goes there and no further, by links or whole."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.receiving.commit import CommitState
from rose.transfer.receiving.receiver_state import ReceiverState
from rose.transfer.receiving.source import InProcessSource
from rose.transfer.version import Version
from tests.transfer.worker import LONG_S, TILE, Worker, changed, weights

BITS = [weights(1)]
for step in range(6):
    BITS.append(changed(BITS[-1], 50 + step))


class Slow(InProcessSource):
    """The log, whose chunks come only when they are let through."""

    def __init__(self, log: VersionLog) -> None:
        super().__init__(log)
        self.asked, self.let_through = threading.Event(), threading.Event()
        self.let_through.set()
        self.more: list[Manifest] = []
        self.keys: set[UpdateKey] = set()

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        offered = super().wait_manifests(after_n, timeout_s)
        return [*offered, *self.more] if offered else offered

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]):
        self.keys.add(key)
        self.asked.set()
        assert self.let_through.wait(LONG_S)
        yield from super().chunks(key, wanted)


class Chain:
    """A publisher of several versions, and a worker that holds the first of them."""

    def __init__(self, versions: int) -> None:
        self.log = VersionLog()
        self.publisher = RowPublisher(BITS[0], "run", 1, 0, self.log, tile_elements=TILE)
        self.source = Slow(self.log)
        self.worker = Worker(self.source, BITS[0])
        self.worker.follow(self.at(0))
        self.worker.receiver.aim(self.at(0))
        for _ in range(versions):
            self.publish()

    def at(self, n: int) -> Version:
        return Version("run", 1, n)

    def publish(self) -> Version:
        return self.publisher.publish(BITS[self.publisher.version.n + 1]).version

    def is_at(self, n: int) -> bool:
        return np.array_equal(self.worker.bits, BITS[n])


@pytest.fixture
def chain() -> Iterator[Chain]:
    made = Chain(4)
    with made.worker:
        yield made


def test_receiver_stops_where_it_is_told_and_goes_on_when_it_is_let(chain: Chain) -> None:
    assert chain.worker.receiver.staged_version is None
    chain.worker.receiver.aim(chain.at(2))
    chain.worker.follow(chain.at(2))
    assert chain.is_at(2)
    assert not chain.worker._bell.wait(0.2)  # Bounds what is looked for, and nothing else.
    assert chain.worker.receiver.staged_version is None
    chain.worker.receiver.aim(None)
    chain.worker.follow(chain.at(4))
    assert chain.is_at(4)
    assert chain.worker.receiver.stats.seeds == 0


def test_longer_way_that_leads_beyond_is_not_even_asked_for(chain: Chain) -> None:
    newest = chain.log.manifests_after(3)[-1]
    opening = chain.publisher.seed(0)
    assert opening is not None
    span = replace(newest, base=chain.at(0), base_digest=opening[0].digest)
    chain.source.more = [span]
    chain.worker.receiver.aim(chain.at(2))
    chain.worker.follow(chain.at(2))
    assert chain.is_at(2)
    assert span.key not in chain.source.keys


def test_direct_aim_is_reached_in_one_commit_with_the_tiles_that_differ(chain: Chain) -> None:
    chain.worker.receiver.aim(chain.at(3), is_direct=True)
    count = len(chain.worker.outcomes)
    chain.worker.commit()
    assert chain.worker.receiver.held == chain.at(3)
    assert chain.is_at(3)
    assert len(chain.worker.outcomes) == count + 1


def test_what_lies_ready_is_dropped_when_it_leads_elsewhere(chain: Chain) -> None:
    chain.worker.receiver.aim(chain.at(3), is_direct=True)
    assert chain.worker._bell.wait(LONG_S)
    assert chain.worker.receiver.staged_version == chain.at(3)
    chain.worker._bell.clear()
    chain.worker.receiver.aim(chain.at(1), is_direct=True)
    assert chain.worker._bell.wait(LONG_S)
    assert chain.worker.receiver.staged_version == chain.at(1)
    chain.worker.commit()
    assert chain.is_at(1)


def test_what_lies_ready_on_the_way_stays(chain: Chain) -> None:
    chain.worker.receiver.aim(chain.at(1))
    assert chain.worker._bell.wait(LONG_S)
    chain.worker.receiver.aim(chain.at(3))
    assert chain.worker.receiver.state is ReceiverState.STAGED
    chain.worker.follow(chain.at(3))
    assert chain.is_at(3)


def test_aim_that_is_not_published_yet_is_waited_for(chain: Chain) -> None:
    chain.worker.receiver.aim(chain.at(5), is_direct=True)
    assert not chain.worker._bell.wait(0.2)
    assert chain.worker.receiver.unreachable is None
    chain.publish()
    chain.worker.commit()
    assert chain.is_at(5)


def test_aim_that_nobody_can_make_any_more_is_named(chain: Chain) -> None:
    dead = Version("run", 0, 2)  # of an incarnation before
    chain.worker.receiver.aim(dead, is_direct=True)
    assert chain.worker._bell.wait(LONG_S)
    assert chain.worker.receiver.unreachable == dead
    assert chain.worker.receiver.take_staged() is None
    chain.worker._bell.clear()
    chain.worker.receiver.aim(None)
    assert chain.worker.receiver.unreachable is None
    chain.worker.follow(chain.at(4))


def test_what_is_on_its_way_is_dropped_when_it_leads_elsewhere(chain: Chain) -> None:
    chain.source.let_through.clear()
    chain.source.asked.clear()
    chain.worker.receiver.aim(chain.at(3), is_direct=True)
    assert chain.source.asked.wait(LONG_S)
    chain.worker.receiver.aim(chain.at(1), is_direct=True)
    chain.source.let_through.set()
    chain.worker.commit()
    assert chain.worker.receiver.held == chain.at(1)
    assert chain.is_at(1)


def test_what_is_on_its_way_is_dropped_when_the_weights_drift(chain: Chain) -> None:
    chain.source.let_through.clear()
    chain.source.asked.clear()
    chain.worker.receiver.aim(chain.at(1))
    assert chain.source.asked.wait(LONG_S)
    chain.worker.bits[7] ^= 1
    digests = chain.worker.digests
    digests.update({0: chain.worker.target.digest(0)})
    chain.worker.receiver.drifted(digests)
    chain.source.let_through.set()
    chain.worker.follow(chain.at(1))
    assert chain.is_at(1)
    assert all(one.state is CommitState.COMMITTED for one in chain.worker.outcomes)
