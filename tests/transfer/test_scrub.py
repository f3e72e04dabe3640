"""A scrub finds every corrupted tile within the time that it is given."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.row_publisher import RowPublisher
from rose.errors import InvalidArgument
from rose.transfer.publishing.log import VersionLog
from rose.transfer.receiving.commit import CommitState
from rose.transfer.receiving.scrub import Scrub
from rose.transfer.tiles import Row
from rose.units import NS_PER_MS
from tests.transfer.worker import COUNT, TILE, TILES, Worker, changed, weights


class StepClock:
    """Each look at it is a while later."""

    def __init__(self, step_ms: float) -> None:
        self.now, self.step_ns = 0, int(step_ms * NS_PER_MS)

    def now_ns(self) -> int:
        self.now += self.step_ns
        return self.now

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a scrub does not sleep")


def scrubbed(scrub: Scrub) -> Scrub:
    while scrub.step(1.0):
        pass
    return scrub


@given(where=st.sets(st.integers(0, COUNT - 1), max_size=5))
def test_scrub_finds_just_the_tiles_that_was_corrupted(where: set[int]) -> None:
    bits = weights(1)
    row = Row(bits, TILES)
    digests = row.digests()
    bits[list(where)] ^= 1
    scrub = scrubbed(Scrub(row, digests, clock=StepClock(0.1)))
    assert sorted(scrub.corrupted) == sorted({at // TILE for at in where})
    # What is there has its own digests now, for the next commit to see.
    assert digests.total == row.digests().total
    assert not scrubbed(Scrub(row, digests, clock=StepClock(0.1))).corrupted


@pytest.mark.parametrize(("step_ms", "slices"), [(10.0, len(TILES)), (1.0, len(TILES) // 4)])
def test_slice_ends_with_its_budget_and_reads_one_tile_at_least(
    step_ms: float, slices: int
) -> None:
    row = Row(weights(1), TILES)
    scrub = Scrub(row, row.digests(), clock=StepClock(step_ms))
    assert not scrub.is_over
    count = 1
    while scrub.step(4.0):
        count += 1
    assert count == slices
    assert scrub.is_over
    assert not scrub.step(4.0)


def test_budget_is_not_negative() -> None:
    row = Row(weights(1), TILES)
    with pytest.raises(InvalidArgument):
        Scrub(row, row.digests(), clock=StepClock(1)).step(-1)


def test_copies_of_all_tiles_are_repaired() -> None:
    row, repaired = Row(weights(1), TILES), []
    scrub = Scrub(row, row.digests(), clock=StepClock(0.1), repair=repaired.append)
    assert not scrubbed(scrub).corrupted
    assert repaired == list(range(len(TILES)))


def test_corruption_that_a_scrub_found_is_repaired_where_it_is_tile_by_tile() -> None:
    log = VersionLog()
    old, new = weights(1), changed(weights(1), 2)
    publisher = RowPublisher(old, "run", 1, 0, log, tile_elements=TILE)
    with Worker(log, old) as worker:
        publisher.publish(new)
        worker.follow(publisher.version)
        before = worker.receiver.stats
        worker.bits[[5, 6, 3 * TILE + 1]] ^= 9
        scrub = scrubbed(Scrub(worker.target, worker.digests, clock=StepClock(0.1)))
        assert sorted(scrub.corrupted) == [0, 3]
        worker.receiver.repair(scrub.digests)
        assert worker.commit() is CommitState.COMMITTED
        assert np.array_equal(worker.bits, new)
        assert worker.receiver.held == publisher.version
        assert worker.receiver.stats.repaired - before.repaired == 2
        # And it goes on by links.
        publisher.publish(changed(new, 3))
        worker.follow(publisher.version)
        assert worker.receiver.stats.snapshots - before.snapshots == 1
