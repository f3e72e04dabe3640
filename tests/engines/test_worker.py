"""An engine of its own as a dedicated worker: turns in, tokens, versions and its lease out."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rose.engines.transformers import (
    EngineConfig,
    EngineWorker,
    LiveWeights,
    Sampling,
    stock_engine,
)
from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.worker import TurnEnd, VersionCommitted, Worker, WorkerKind, WorkerLost
from rose.transfer.receiving.commit import CommitState
from tests.engines.policies import (
    TILE,
    TileCommit,
    copy_of,
    engine_of,
    generate_alone,
    later,
    policy,
    true_logprobs,
)
from tests.engines.recorder import Recorder, turn

PROMPTS = [[(11 * place + 5 * one) % 128 for place in range(20 + one)] for one in range(6)]


class Dedicated:
    """A dedicated worker over live weights."""

    def __init__(self, *, flush_ms: float = 0.0) -> None:
        self.model = policy(seed=9)
        self.weights = LiveWeights(self.model, tile_elements=TILE)
        self.engine = engine_of(self.model, prefix_cache=True)
        self.received = Recorder()
        self.worker: Worker = EngineWorker(
            self.engine, 4, WorkerKind.DEDICATED, self.received, flush_ms=flush_ms
        )

    def start(self) -> None:
        self.engine.start()
        self.received.wait_lease(lambda _: True)

    def commit(self, version: int, *, end: CommitState = CommitState.COMMITTED) -> None:
        count = len(self.received.commits)
        fresh = later(self.weights.row, seed=version)
        self.worker.commit(TileCommit(self.weights, fresh, end=end), version)
        self.received.wait_for(lambda: len(self.received.commits) > count, "commit")


@pytest.fixture
def dedicated() -> Iterator[Dedicated]:
    made = Dedicated()
    made.start()
    yield made
    made.engine.stop()
    assert made.received.faults == []
    assert len(made.received.threads) <= 1


def test_dedicated_worker_has_a_lease_of_its_whole_cache_from_the_start(dedicated) -> None:
    lease = dedicated.received.wait_lease(lambda _: True)
    assert (lease.worker, lease.grant_epoch, lease.ttl_ms) == (4, 1, 0)
    assert lease.kv_tokens == 128 * 16


def test_turns_are_said_whole_with_logprobs_and_versions(dedicated) -> None:
    for trajectory, prompt in enumerate(PROMPTS):
        dedicated.worker.start_turn(turn(trajectory, prompt, 20))
    dedicated.received.wait_ended(*range(len(PROMPTS)))
    for trajectory, prompt in enumerate(PROMPTS):
        truth = generate_alone(dedicated.model, prompt, 20, Sampling(1000 + trajectory, 1.0))
        outputs = dedicated.received.outputs(trajectory)
        assert dedicated.received.tokens(trajectory) == truth
        assert [one.end for one in outputs[:-1]] == [None] * (len(outputs) - 1)
        assert outputs[-1].end is TurnEnd.FINISHED
        logprobs = [one for output in outputs for one in output.logprobs]
        assert logprobs == pytest.approx(
            true_logprobs(dedicated.model, prompt, truth, 1.0), abs=1e-4
        )
        assert {one for output in outputs for one in output.versions} == {0}


def test_tokens_are_reported_while_the_turn_runs_and_with_long_waits_at_its_end() -> None:
    for flush_ms, is_split in ((0.0, True), (1e9, False)):
        made = Dedicated(flush_ms=flush_ms)
        made.start()
        made.worker.start_turn(turn(1, PROMPTS[0], 30))
        made.received.wait_ended(1)
        made.engine.stop()
        assert (len(made.received.outputs(1)) > 1) == is_split
        assert len(made.received.tokens(1)) == 30
        assert made.received.faults == []


def test_turn_that_was_stopped_goes_on_at_its_token(dedicated) -> None:
    truth = generate_alone(dedicated.model, PROMPTS[1], 200, Sampling(1002, 1.0))
    dedicated.worker.start_turn(turn(2, PROMPTS[1], 200))
    dedicated.received.wait_tokens(2, 10)
    dedicated.worker.stop_turn(2)
    dedicated.worker.stop_turn(2)  # unknown by now
    dedicated.received.wait_ended(2)
    said = dedicated.received.tokens(2)
    assert 10 <= len(said) < 200
    dedicated.worker.start_turn(turn(2, PROMPTS[1] + said, 200 - len(said), first_token=len(said)))
    dedicated.received.wait_ended(2, times=2)
    assert dedicated.received.tokens(2) == truth
    assert dedicated.received.ends(2) == [TurnEnd.INTERRUPTED, TurnEnd.FINISHED]
    assert dedicated.received.outputs(2)[-1].first_token > len(said)
    assert dedicated.engine.processor.cache.cache_allocators["full_attention"].block_table == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_new_tokens": 0}, "at least 1"),
        ({"prompt": ()}, "at least 1"),
        ({"max_new_tokens": 4000}, "exceeds the"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_turn_that_nobody_can_run_fails_with_a_sentence(dedicated, changes, says: str) -> None:
    dedicated.worker.start_turn(replace(turn(3, PROMPTS[0], 5), **changes))
    dedicated.received.wait_ended(3)
    (output,) = dedicated.received.outputs(3)
    assert output.end is TurnEnd.FAILED
    assert says in output.error
    dedicated.worker.start_turn(turn(3, PROMPTS[0], 5))
    dedicated.received.wait_ended(3, times=2)
    assert dedicated.received.ends(3)[1] is TurnEnd.FINISHED


def test_turn_told_twice_runs_once_and_another_of_its_trajectory_fails(dedicated) -> None:
    request = turn(1, PROMPTS[0], 80)
    dedicated.worker.start_turn(request)
    dedicated.worker.start_turn(request)
    dedicated.worker.start_turn(turn(1, PROMPTS[0], 80, turn=1))
    dedicated.received.wait_ended(1, times=2)
    ends = {one.turn: one.end for one in dedicated.received.outputs(1) if one.end}
    assert ends == {0: TurnEnd.FINISHED, 1: TurnEnd.FAILED}
    assert len(dedicated.received.tokens(1)) == 80


def test_turn_under_a_lease_that_is_over_comes_back_at_once(dedicated) -> None:
    for epoch in (0, 2):
        dedicated.worker.start_turn(turn(5, PROMPTS[0], 5, grant_epoch=epoch))
    dedicated.received.wait_ended(5, times=2)
    assert [one.grant_epoch for one in dedicated.received.outputs(5)] == [0, 2]
    assert dedicated.received.ends(5) == [TurnEnd.INTERRUPTED] * 2
    assert dedicated.received.tokens(5) == []


# ---- weights -------------------------------------------------------------------------------------


def test_commit_is_reported_and_the_turn_that_runs_carries_both_versions(dedicated) -> None:
    dedicated.worker.start_turn(turn(1, PROMPTS[0], 200))
    dedicated.received.wait_tokens(1, 5)
    dedicated.commit(7)
    dedicated.received.wait_ended(1)
    (event,) = dedicated.received.commits
    assert event == VersionCommitted(4, 7, is_match=True, pause_ms=event.pause_ms)
    versions = [one for output in dedicated.received.outputs(1) for one in output.versions]
    assert versions == sorted(versions)
    assert set(versions) == {0, 7}


def test_worker_in_quarantine_gives_its_turns_back_until_a_commit_goes_well(dedicated) -> None:
    sound = copy_of(dedicated.model)
    dedicated.worker.start_turn(turn(1, PROMPTS[0], 900))
    dedicated.received.wait_tokens(1, 5)
    dedicated.commit(2, end=CommitState.QUARANTINED)
    dedicated.received.wait_lease(lambda lease: lease.kv_tokens == 0)
    assert dedicated.received.ends(1) == [TurnEnd.INTERRUPTED]
    said = dedicated.received.tokens(1)
    assert said == generate_alone(sound, PROMPTS[0], len(said), Sampling(1001, 1.0))
    dedicated.worker.start_turn(turn(2, PROMPTS[0], 5))
    dedicated.received.wait_ended(2)
    assert dedicated.received.tokens(2) == []
    dedicated.commit(3)
    lease = dedicated.received.wait_lease(lambda lease: lease.grant_epoch == 2)
    assert lease.kv_tokens == 128 * 16
    dedicated.worker.start_turn(turn(2, PROMPTS[0], 5, grant_epoch=2))
    dedicated.received.wait_ended(2, times=2)
    assert dedicated.received.outputs(2)[-1].versions[-1] == 3
    assert [one.is_match for one in dedicated.received.commits] == [False, True]


# ---- ends ----------------------------------------------------------------------------------------


def test_stopped_engine_gives_every_token_back_and_the_worker_is_lost_once(dedicated) -> None:
    dedicated.worker.start_turn(turn(1, PROMPTS[0], 1500))
    dedicated.received.wait_tokens(1, 5)
    dedicated.engine.stop()
    assert dedicated.received.ends(1) == [TurnEnd.INTERRUPTED]
    assert isinstance(dedicated.received.events[-1], WorkerLost)
    dedicated.worker.start_turn(turn(2, PROMPTS[0], 5))
    dedicated.engine.stop()
    assert len(dedicated.received.of(WorkerLost)) == 1
    with pytest.raises(Unavailable):
        dedicated.worker.commit(TileCommit(dedicated.weights, dedicated.weights.row), 1)


def test_loop_that_dies_fails_its_turns_and_the_worker_is_lost(
    dedicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    dedicated.worker.start_turn(turn(1, PROMPTS[0], 1500))
    dedicated.received.wait_tokens(1, 5)

    def fail(*_arguments: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(dedicated.engine.processor.model_runner, "compute_batch", fail)
    dedicated.received.wait_for(lambda: dedicated.received.of(WorkerLost), "loss")
    assert dedicated.received.ends(1) == [TurnEnd.FAILED]
    assert len(dedicated.received.tokens(1)) >= 5
    (lost,) = dedicated.received.of(WorkerLost)
    assert "planted" in lost.reason


def test_worker_needs_an_engine_that_samples_and_suits_its_kind() -> None:
    model = policy(seed=1)
    plain = stock_engine(model, EngineConfig(max_batch_tokens=64), cache_blocks=16)
    with pytest.raises(InvalidArgument, match="sampling=True"):
        EngineWorker(plain, 1, WorkerKind.DEDICATED, Recorder())
    with pytest.raises(InvalidArgument, match="borrowed"):
        EngineWorker(engine_of(model), 1, WorkerKind.BORROWED, Recorder())
