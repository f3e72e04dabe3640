"""A receiver of some tiles stages only versions for the weights that it holds."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.clock import BootClock
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import Manifest, Subscription
from rose.transfer.publishing.log import VersionLog
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.commit import Commit, CommitOutcome, CommitState
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.scrub import Scrub
from rose.transfer.receiving.staging import Staging
from rose.transfer.signing import Signing
from rose.transfer.source import Source, SourceAround
from rose.transfer.tiles import Row
from tests.transfer.chain_world import KEY, Chain
from tests.transfer.worker import NAMELESS, TILE, TILES, Bits, changed, weights

HALF = range(8)


class Part:
    """Some tiles of the weights, and what stages their versions, in this thread."""

    def __init__(
        self, source: Source, bits: Bits, tiles: range = HALF, *, signing: Signing = KEY
    ) -> None:
        self.bits = bits.copy()
        self.row = Row(self.bits, TILES)
        self.tiles = list(tiles)
        self.digests = TileDigests({tile: self.row.digest(tile) for tile in tiles})
        self.staging = Staging(
            source, "part", Held(NAMELESS, self.digests.total), Subscription(TILES, tiles),
            puller=Puller(source, threading.Event()), on_staged=lambda: None,
            signing=signing, digests=self.digests.copy(),
        )  # fmt: skip

    def follow(self, source: Source) -> None:
        """Use another source, as if its address were the same."""
        self.staging._source = self.staging._puller._source = source

    def commit(self) -> CommitOutcome | None:
        """Commit what lies ready, and report."""
        if (staged := self.staging.take_staged()) is None:
            return None
        held = self.staging.digest
        commit = Commit(staged, self.row, held, digests=self.digests, subscribed=self.tiles)
        while commit.step():
            pass
        assert commit.digests is not None
        self.digests = commit.digests
        self.staging.report(commit.outcome)
        return commit.outcome

    def round(self, count: int = 1) -> None:
        for _ in range(count):
            self.staging.round(0)
            self.commit()

    def corrupt(self, tile: int) -> None:
        """Flip a bit, and let a scrub find it."""
        self.bits[tile * TILE + 3] ^= 0x4000
        scrub = Scrub(self.row, self.digests, clock=BootClock())
        while scrub.step(0):
            pass
        self.staging.repair(scrub.digests)

    def is_like(self, bits: Bits) -> bool:
        end = len(self.tiles) * TILE
        return np.array_equal(self.bits[:end], bits[:end])


def step_in(chain: Chain, tile: int) -> None:
    """Publish a version in which one tile is another."""
    chain.bits = chain.bits.copy()
    chain.bits[tile * TILE] += 1
    chain.publisher.publish(chain.bits)


class Interrupted(SourceAround):
    """Lets something happen while the receiver waits for manifests."""

    meanwhile: Callable[[], None] | None = None

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().wait_manifests(after_n, timeout_s)


def test_corruption_found_while_waiting_is_repaired() -> None:
    chain = Chain()
    source = Interrupted(chain.log)
    part = Part(source, chain.bits)
    part.round()
    step_in(chain, 1)
    part.round()
    assert part.staging.held == chain.publisher.version

    def meanwhile() -> None:
        part.corrupt(5)
        step_in(chain, 1)  # which says nothing of the tile that corrupted

    source.meanwhile = meanwhile
    part.round(4)
    assert part.staging.held == chain.publisher.version
    assert part.is_like(chain.bits)
    assert part.staging.stats.repaired == 1


def test_tile_that_was_corrupted_before_a_version_changes_it_is_repaired_alone() -> None:
    chain = Chain()
    part = Part(chain.log, chain.bits, range(len(TILES)))
    part.round()
    step_in(chain, 1)
    part.round()
    step_in(chain, 5)
    part.bits[5 * TILE + 1] ^= 0x4000  # and no scrub came by
    part.staging.round(0)
    outcome = part.commit()
    assert outcome is not None
    assert outcome.state is CommitState.ROLLED_BACK
    assert outcome.digest == part.row.digests().total
    part.round(3)
    assert part.staging.held == chain.publisher.version
    assert np.array_equal(part.bits, chain.bits)
    assert part.staging.stats.repaired == 1


def test_receiver_that_is_told_of_a_version_and_gets_an_older_one_whole_waits() -> None:
    chain = Chain()
    chain.publish(3)
    old = chain.log.snapshot(2, ())

    class Behindhand(SourceAround):
        def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
            return old if n is None else None

    part = Part(chain.log, chain.bits)
    part.round(2)
    assert part.staging.held == chain.publisher.version
    part.staging._source = Behindhand(chain.log)
    part.corrupt(3)
    for _ in range(3):
        with pytest.raises(Unavailable, match="none arrives completely"):
            part.round()


@pytest.fixture
def older_run() -> VersionLog:
    """Return what another run of the same key and layout signed once, to higher numbers."""
    log, bits = VersionLog(), weights(7)
    publisher = RowPublisher(bits, "older", 1, 1, log, tile_elements=TILE, signing=KEY)
    for seed in range(9):
        bits = changed(bits, seed)
        publisher.publish(bits)
    return log


def test_receiver_stays_in_the_run_that_it_committed_from(older_run: VersionLog) -> None:
    chain = Chain()
    part = Part(chain.log, chain.bits)
    part.round()
    chain.publish(1)
    part.round()
    held = part.staging.held
    assert held == chain.publisher.version
    part.staging._source = older_run
    for corrupt in (False, True):
        if corrupt:
            part.corrupt(2)
        with pytest.raises(InvalidArgument, match="began before"):
            part.round()
        assert part.staging.staged_version is None
    part.staging._source = chain.log
    part.round(2)
    assert part.staging.held == held
    assert part.is_like(chain.bits)


class Restarted(SourceAround):
    """Offers all versions to the first call, as a server does to a client of another run."""

    is_told = False

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        after_n, self.is_told = (after_n if self.is_told else -1), True
        return super().wait_manifests(after_n, timeout_s)


def test_another_run_with_lower_numbers_is_joined_although_no_call_failed() -> None:
    chain = Chain(signing=Signing())
    part = Part(chain.log, chain.bits, signing=Signing())
    part.round()
    chain.publish(2)
    part.round(2)
    assert part.staging.held == chain.publisher.version
    log, bits = VersionLog(), weights(5)
    other = RowPublisher(bits, "another", 1, 1, log, tile_elements=TILE)
    part.follow(Restarted(log))
    part.round(3)
    assert part.staging.held == other.version
    assert part.is_like(bits)


def test_manifests_that_contradict_the_layout_are_refused() -> None:
    chain = Chain(signing=Signing())

    class Bent(SourceAround):
        fields: dict[str, object]

        def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
            return [replace(one, **self.fields) for one in super().wait_manifests(after_n, 0)]

    source = Bent(chain.log)
    part = Part(source, chain.bits)
    part.staging._signing = Signing()
    for fields, error in (({"layout": "0" * 64}, InvalidArgument), ({"count": 7}, CorruptData)):
        source.fields = fields
        with pytest.raises(error, match="layout"):
            part.round()


def test_manifests_of_another_run_among_those_of_its_own_say_nothing(
    older_run: VersionLog,
) -> None:
    chain = Chain()

    class Mixed(SourceAround):
        def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
            own = super().wait_manifests(after_n, timeout_s)
            return [*own, *older_run.wait_manifests(after_n, 0)]

    part = Part(chain.log, chain.bits)
    part.round()
    part.staging._source = Mixed(chain.log)
    chain.publish(2, is_merged=False)
    part.round(2)
    assert part.staging.held == chain.publisher.version
    assert part.is_like(chain.bits)
