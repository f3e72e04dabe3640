"""All orders of publishing, staging, committing, failing and dying: bits are what they are called.

A publisher that can die, and a receiver without a thread, so that each order is one that hypothesis
chose. The model is a table of the bits of every version there ever was.
"""

import threading
from collections.abc import Generator, Sequence
from contextlib import suppress

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rose.errors import CorruptData, OutOfMemory, Unavailable
from rose.transfer import Delta
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.manifest import Chunk, UpdateKey
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.commit import Commit, CommitState
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.staging import ReceiverState, Staging
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.source import Frame, SourceAround
from rose.transfer.tiles import Tiles
from rose.transfer.version import NAMELESS, Version
from rose.transfer.views import Row
from tests.transfer.worker import Bits, changed, weights
from tests.transfer.worker import row_digest as digest_in_tiles

COUNT, TILE = 150, 32
TILES = Tiles.of(COUNT, TILE)


def row_digest(bits: Bits) -> Digest:
    return digest_in_tiles(bits, TILE)


class Wire(SourceAround):
    """Breaks off after some chunks, and spoils some."""

    def __init__(self, log: VersionLog) -> None:
        super().__init__(log)
        self.left: int | None = None  # chunks until it breaks off; None: it does not
        self.spoiled = 0

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        for tile, frame in super().chunks(key, wanted):
            if self.left == 0:
                raise Unavailable("planted")
            self.left = None if self.left is None else self.left - 1
            if frame is not None and self.spoiled:
                self.spoiled -= 1
                yield tile, frame[: len(frame) // 2]
            else:
                yield tile, frame


class Watched(RowPublisher):
    """A publisher whose shadow can be looked at."""

    def shadow_is(self, bits: Bits) -> bool:
        [contributor] = self._contributors
        shadow = [contributor._shadow.bits(tile) for tile in range(len(self.tiles))]
        return np.array_equal(np.concatenate(shadow), bits)


class Weights(Row):
    """A row whose changes can be made to fail."""

    fails_in = 0  # changes until one fails; 0: none does

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        if self.fails_in and not undo:
            self.fails_in -= 1
            if self.fails_in == 0:
                raise CorruptData("planted")
        super().apply(tile, delta, undo=undo)


class TransferMachine(RuleBasedStateMachine):
    @initialize(has_same_bits=st.booleans(), versions_max=st.integers(1, 4))
    def begin(self, has_same_bits: bool, versions_max: int) -> None:
        self.versions_max = versions_max
        self.by_name: dict[Version, Bits] = {}
        self.incarnation, self.newest_n, self.seed = 0, 0, 1000
        self.start(weights(1, COUNT))
        self.source = Wire(self.log)
        self.bits = weights(1 if has_same_bits else 2, COUNT)
        self.by_name[NAMELESS] = self.bits.copy()
        self.row = Weights(self.bits, TILES)
        self.staging = Staging(
            self.source,
            "one",
            Held(NAMELESS, row_digest(self.bits)),
            Subscription(TILES),
            puller=Puller(self.source, threading.Event(), retries=1, backoff_s=0),
            on_staged=lambda: None,
        )
        self.commit: Commit | None = None
        self.digests: TileDigests | None = None

    def start(self, bits: Bits) -> None:
        self.incarnation += 1
        self.newest_n += 1
        self.log = VersionLog(versions_max=self.versions_max, bytes_max=3000)
        self.publisher = Watched(
            bits, "run", self.incarnation, self.newest_n, self.log, tile_elements=TILE
        )
        self.by_name[self.publisher.version] = self.fresh = bits

    @rule(share=st.sampled_from([0.0, 0.01, 0.1, 1.0]))
    def publish(self, share: float) -> None:
        self.seed += 1
        fresh = changed(self.fresh, self.seed, share)
        before = self.publisher.version
        self.publisher.publish(fresh)
        assert self.publisher.version.n == before.n + 1
        self.newest_n = self.publisher.version.n
        self.by_name[self.publisher.version] = self.fresh = fresh

    @rule()
    def publish_what_is_refused(self) -> None:
        limit, self.log._bytes_max = self.log._bytes_max, 1
        fresh = weights(self.seed, COUNT)
        with suppress(OutOfMemory):
            self.publisher.publish(fresh)
            raise AssertionError("more than a byte was kept in one")
        self.log._bytes_max = limit

    @rule(data=st.data())
    def trainer_dies_and_comes_back(self, data: st.DataObject) -> None:
        known = sorted(version for version in self.by_name if version.run)
        self.start(self.by_name[data.draw(st.sampled_from(known))])
        self.source._source = self.log
        self.source.left = None

    @rule(chunks=st.integers(0, 4))
    def wire_breaks_off(self, chunks: int) -> None:
        self.source.left = chunks

    @rule()
    def wire_is_mended(self) -> None:
        self.source.left = None

    @rule(chunks=st.integers(1, 5))
    def chunks_are_cut_off(self, chunks: int) -> None:
        self.source.spoiled = chunks

    @rule()
    def stage(self) -> None:
        with suppress(Unavailable, CorruptData):
            self.staging.round(0)

    @precondition(lambda self: self.staging.state is ReceiverState.STAGED)
    @rule(fails_in=st.sampled_from([0, 0, 0, 1, 2, 5]))
    def begin_commit(self, fails_in: int) -> None:
        staged = self.staging.take_staged()
        assert staged is not None
        self.row.fails_in = fails_in
        self.commit = Commit(staged, self.row, self.staging.digest, digests=self.digests)

    @precondition(lambda self: self.commit is not None)
    @rule(slices=st.integers(1, 12))
    def do_slices(self, slices: int) -> None:
        for _ in range(slices):
            if not self.commit.step():
                self.end_commit()
                return

    @precondition(lambda self: self.commit is not None)
    @rule()
    def abandon(self) -> None:
        self.commit.abandon()
        self.end_commit()

    def end_commit(self) -> None:
        assert self.commit.state in {CommitState.COMMITTED, CommitState.ROLLED_BACK}
        self.digests = self.commit.digests
        self.staging.report(self.commit.outcome)
        self.commit = None

    @invariant()
    def bits_are_those_of_the_version_they_are_called(self) -> None:
        if self.commit is not None:
            return
        assert np.array_equal(self.bits, self.by_name[self.staging.held])
        assert self.staging.digest == row_digest(self.bits)

    @invariant()
    def shadow_is_the_newest_version(self) -> None:
        assert self.publisher.shadow_is(self.by_name[self.publisher.version])

    def teardown(self) -> None:
        """Let everything be well again: the receiver comes to the newest version."""
        if not hasattr(self, "staging"):
            return
        if self.commit is not None:
            self.abandon()
        self.source.left, self.source.spoiled, self.row.fails_in = None, 0, 0
        self.log._bytes_max = 1 << 20
        # Once more, for a receiver that waits for another version than one it could not commit.
        self.publish(0.1)
        for _ in range(50):
            if self.staging.held == self.publisher.version:
                break
            self.stage()
            if self.staging.state is ReceiverState.STAGED:
                self.begin_commit(0)
                self.do_slices(1 << 10)
        assert self.staging.held == self.publisher.version
        assert np.array_equal(self.bits, self.fresh)


TestTransferMachine = TransferMachine.TestCase
TestTransferMachine.settings = settings(stateful_step_count=40, deadline=None)
