"""A rank's engine stops at a step boundary, changes weights with its replica, and runs on."""

import time

import numpy as np
import pytest

from rose.clock import BootClock
from rose.engines.transformers import EngineWorker, LiveWeights
from rose.scheduler.worker import WorkerKind
from rose.transfer.manifest import StagedVersion
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.receiving.source import InProcessSource
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.replicas.host import ReplicaHost
from rose.transfer.replicas.member import ReplicaMember
from rose.transfer.replicas.messages import RankPhase
from rose.transfer.replicas.rank import ReplicaRank
from rose.transfer.version import Version
from tests.engines.pair import WAIT_S
from tests.engines.policies import TILE, engine_of, later, policy, true_logprobs
from tests.engines.recorder import Recorder, turn
from tests.engines.stepper import wait_for

PROMPT = [(7 * place + 3) % 128 for place in range(40)]


class Rank:
    """One rank of a replica of one, on a real engine."""

    def __init__(self) -> None:
        self.model = policy(seed=9)
        self.weights = LiveWeights(self.model, tile_elements=TILE)
        self.first = self.weights.row.copy()
        self.log = VersionLog()
        self.publisher = RowPublisher(self.first, "run", 1, 0, self.log, tile_elements=TILE)
        self.engine = engine_of(self.model, inflight="recompute")
        self.heard = Recorder()
        self.worker = EngineWorker(self.engine, 4, WorkerKind.DEDICATED, self.heard, flush_ms=0.0)
        digests = self.weights.digests()
        self.commits: list[Commit] = []
        self.book = digests
        self.member = ReplicaMember(
            ReplicaRank(0, 1, Version("", 0, 0)),
            self.make_commit,
            lambda pause: self.worker.commit(pause, lambda: pause.version),
            clock=BootClock(),
        )
        self.receiver = Receiver(
            InProcessSource(self.log),
            "rank-0",
            Version("", 0, 0),
            digests.total,
            Subscription(self.weights.cut),
            self.member.look,
            digests=digests.copy(),
        )

    def make_commit(self, staged: StagedVersion, *, is_held: bool) -> Commit:
        if self.commits and self.commits[-1].digests is not None:
            self.book = self.commits[-1].digests
        self.commits.append(
            Commit(staged, self.weights, self.receiver.digest, digests=self.book, is_held=is_held)
        )
        return self.commits[-1]

    def wait_in_use(self, n: int) -> None:
        wait_for(lambda: self.engine.version == n and self.member.phase is RankPhase.IN_USE)


@pytest.mark.timeout(3 * WAIT_S)
def test_engine_of_a_rank_runs_only_what_its_replica_uses() -> None:
    rank = Rank()
    rank.engine.start()
    with ReplicaHost(1, 7) as host:
        try:
            rank.heard.wait_lease(lambda _: True)
            # Nobody coordinates it yet: the engine stands still.
            rank.member.attach(rank.receiver)
            rank.worker.start_turn(turn(1, PROMPT, 200))
            time.sleep(0.1)
            assert rank.heard.outputs(1) == []
            rank.member.met(7, host.hear)
            host.join(0, 1, rank.member.hear)
            rank.heard.wait_tokens(1, 5)
            rank.publisher.publish(later(rank.first, seed=1))
            rank.wait_in_use(1)
            rank.heard.wait_ended(1)
        finally:
            rank.receiver.close()
            rank.engine.stop()
    assert np.array_equal(rank.weights.row, later(rank.first, seed=1))
    assert rank.weights.sweep()
    outputs = rank.heard.outputs(1)
    versions = [one for output in outputs for one in output.versions]
    switched = versions.index(1)
    assert versions == [0] * switched + [1] * (200 - switched)
    logprobs = [one for output in outputs for one in output.logprobs]
    truth = true_logprobs(rank.model, PROMPT, rank.heard.tokens(1), 1.0)
    assert logprobs[switched:] == pytest.approx(truth[switched:], abs=1e-4)
    parts = rank.member.parts
    assert parts is not None
    assert parts.apply_ms > 0
    assert 0 < parts.pause_ms <= rank.heard.commits[-1].pause_ms


@pytest.mark.timeout(3 * WAIT_S)
def test_engine_that_is_stopped_in_a_pause_ends_with_the_base() -> None:
    rank = Rank()
    rank.engine.start()
    try:
        rank.heard.wait_lease(lambda _: True)
        rank.member.attach(rank.receiver)
        wait_for(lambda: rank.receiver.staged_version is not None)
    finally:
        rank.engine.stop()
        rank.receiver.close()
    assert np.array_equal(rank.weights.row, rank.first)
    rank.member.look()  # It asks for no pause of an engine that is gone.
    assert rank.engine.processor.commits.is_empty
