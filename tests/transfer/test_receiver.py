"""A receiver follows its publisher through damage, corruption and restarts."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.errors import InternalError, Unavailable
from rose.transfer.manifest import Chunk, Manifest, Subscription, UpdateKey, Version
from rose.transfer.publishing.log import VersionLog
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.commit import CommitOutcome, CommitState
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.staging import ReceiverState, Staging
from rose.transfer.source import Frames, SourceAround
from rose.transfer.tiles import Row, Tiles
from tests.transfer.test_commit import Failing
from tests.transfer.worker import LONG_S, TILE, TILES, Bits, Worker, changed, row_digest, weights


class Trainer:
    """A publisher with its log, and the bits of every version."""

    def __init__(self, bits: Bits, *, incarnation: int = 1, first: int = 1, **limits: int) -> None:
        self.log = VersionLog(**limits)
        self.bits = bits
        self.publisher = RowPublisher(bits, "run", incarnation, first, self.log, tile_elements=TILE)

    def publish(self, versions: int = 1) -> Version:
        for _ in range(versions):
            self.bits = changed(self.bits, self.publisher.version.n)
            self.publisher.publish(self.bits)
        return self.publisher.version


class Bent(SourceAround):
    """A source that spoils some chunks."""

    def __init__(self, log: VersionLog) -> None:
        super().__init__(log)
        self.spoiled: dict[tuple[int, bool], int] = {}  # (n, is whole): how many chunks
        self.is_down = False
        self.order = lambda manifests: manifests

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        if self.is_down:
            raise Unavailable("planted")
        return list(self.order(super().wait_manifests(after_n, timeout_s)))

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        for tile, frame in super().chunks(key, wanted):
            if self.is_down:
                raise Unavailable("planted")
            left = self.spoiled.get((key.n, key.is_whole), 0)
            if left and frame is not None:
                self.spoiled[key.n, key.is_whole] = left - 1
                yield tile, bytes([*frame[:-1], frame[-1] ^ 1])
            else:
                yield tile, frame


@pytest.mark.parametrize("threads", [1, 3])
def test_frames_are_looked_at_by_any_number_of_threads(threads: int) -> None:
    trainer = Trainer(weights(1))
    source = Bent(trainer.log)
    source.spoiled[3, False] = 2
    with Worker(source, weights(1), threads=threads) as worker:
        for _ in range(3):
            worker.follow(trainer.publish())
            assert np.array_equal(worker.bits, trainer.bits)
        assert worker.receiver.stats.chunks_retried == 2
        assert worker.receiver.stats.snapshots == 0
    assert not [one for one in threading.enumerate() if one.name.startswith("rose-staging")]


def test_report_waits_for_a_publisher_that_cannot_be_reached() -> None:
    trainer = Trainer(weights(1))
    tries: list[int] = []
    arrived = threading.Event()

    class Deaf(SourceAround):
        def report(self, receiver: str, n: int, is_match: bool, digest: tuple[int, int]) -> None:
            tries.append(n)
            if len(tries) < 4:
                raise Unavailable("planted")
            super().report(receiver, n, is_match, digest)
            arrived.set()

    with Worker(Deaf(trainer.log), weights(1)) as worker:
        worker.commit()
        assert arrived.wait(LONG_S)
    assert tries == [1, 1, 1, 1]
    assert trainer.log.receivers()["worker"].n == 1


def test_version_that_stays_damaged_is_given_up_for_a_snapshot() -> None:
    trainer = Trainer(weights(1))
    source = Bent(trainer.log)
    source.spoiled[2, False] = 1 << 30
    with Worker(source, weights(1)) as worker:
        worker.follow(trainer.publish())
        assert np.array_equal(worker.bits, trainer.bits)
        assert worker.receiver.stats.given_up == 1
        assert worker.receiver.stats.snapshots == 1
        worker.follow(trainer.publish())  # and deltas go on
        assert worker.receiver.stats.snapshots == 1


def test_corruption_is_repaired_although_nothing_new_is_published() -> None:
    trainer = Trainer(weights(1))
    lie = row_digest(weights(1))
    with Worker(trainer.log, weights(5), claimed=lie) as worker:
        assert worker.commit() is CommitState.ROLLED_BACK  # it is not what it claimed
        assert worker.receiver.digest == row_digest(weights(5))
        worker.follow(trainer.publisher.version)
        assert np.array_equal(worker.bits, trainer.bits)


def test_whole_version_that_cannot_be_applied_waits_for_a_newer_one() -> None:
    trainer = Trainer(weights(1))
    never = Failing(Row(weights(99), Tiles.of(1000, TILE)), method="bits", at=1)
    with Worker(trainer.log, weights(99), wrap=lambda _: never) as worker:
        assert worker.commit() is CommitState.ROLLED_BACK
        assert worker.receiver.stats.snapshots == 1
        version = trainer.publish()
        assert worker.commit() is CommitState.COMMITTED
        assert worker.receiver.held == version
        assert worker.receiver.stats.snapshots == 2


@pytest.mark.parametrize("held", [Version("run", 1, 1), Version("run", 7, 1)])
def test_receiver_without_news_waits(held: Version) -> None:
    """It has the newest version, or its publisher is one of a dead incarnation."""
    trainer = Trainer(weights(1))
    waited: list[int] = []

    class Counting(SourceAround):
        def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
            waited.append(after_n)
            return super().wait_manifests(after_n, timeout_s)

    source = Counting(trainer.log)
    staging = Staging(
        source,
        "one",
        Held(held, row_digest(weights(1))),
        Subscription(TILES),
        puller=Puller(source, threading.Event()),
        on_staged=lambda: None,
    )
    staging.round(0)
    assert staging.state is ReceiverState.SYNCED
    assert waited == [-1, trainer.publisher.version.n]


def test_quarantine_is_final() -> None:
    trainer = Trainer(weights(1))

    def wrap(row: Row) -> Failing:
        return Failing(row, method="apply", at=1, is_late=True)

    with Worker(trainer.log, weights(1), wrap=wrap) as worker:
        assert worker.commit() is CommitState.COMMITTED  # the opening, nothing to apply
        trainer.publish()
        assert worker.commit() is CommitState.QUARANTINED
        assert worker.receiver.state is ReceiverState.QUARANTINED
        trainer.publish()
        assert worker.receiver.take_staged() is None


def test_abandoned_version_is_staged_again() -> None:
    trainer = Trainer(weights(1))
    with Worker(trainer.log, weights(1)) as worker:
        worker.follow(trainer.publisher.version)
        version = trainer.publish()
        assert worker._bell.wait(LONG_S)
        worker._bell.clear()
        staged = worker.receiver.take_staged()
        assert staged is not None
        worker.receiver.report(
            CommitOutcome(
                version, CommitState.ROLLED_BACK, worker.receiver.digest, is_abandoned=True
            )
        )
        worker.follow(version)
        assert worker.receiver.stats.snapshots == 0
        assert np.array_equal(worker.bits, trainer.bits)


def test_staging_goes_on_where_it_broke_off() -> None:
    trainer = Trainer(weights(1))
    asked: list[int] = []

    class Breaking(SourceAround):
        def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
            for tile, frame in super().chunks(key, wanted):
                asked.append(tile)
                if len(asked) == 5:
                    raise Unavailable("planted")
                yield tile, frame

    with Worker(Breaking(trainer.log), weights(99)) as worker:
        worker.follow(trainer.publisher.version)
    assert asked == [0, 1, 2, 3, 4, *range(4, 16)]


def test_outcome_of_a_version_that_was_not_taken_is_a_bug() -> None:
    trainer = Trainer(weights(1))
    with Worker(trainer.log, weights(1)) as worker:
        with pytest.raises(InternalError):
            worker.receiver.report(
                CommitOutcome(Version("run", 1, 9), CommitState.COMMITTED, row_digest(weights(1)))
            )
        worker.follow(trainer.publisher.version)


def test_close_while_a_version_lies_ready_leaves_no_thread() -> None:
    trainer = Trainer(weights(1))
    worker = Worker(trainer.log, weights(1))
    assert worker._bell.wait(LONG_S)
    worker.receiver.close()
    assert not any(thread.name.startswith("rose-receiver") for thread in threading.enumerate())
