"""An engine of its own as a dedicated worker: turns in, tokens, versions and its lease out."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from msgspec import structs

from rose.engines.transformers import (
    EngineConfig,
    EngineWorker,
    LiveWeights,
    ModelFacts,
    Sampling,
    stock_engine,
)
from rose.engines.transformers.suspects import FAULTS_MAX
from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.worker import (
    Options,
    TurnEnd,
    VersionCommitted,
    Worker,
    WorkerKind,
    WorkerLost,
)
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


REFUSED, FAILED = TurnEnd.REFUSED, TurnEnd.FAILED


@pytest.mark.parametrize(
    ("changes", "end", "says"),
    [
        ({"max_new_tokens": 0}, REFUSED, "at least 1"),
        ({"prompt": ()}, REFUSED, "at least 1"),
        ({"prompt": (5, 128)}, REFUSED, "from 0 to 127, got 128"),
        ({"prompt": (5, -1)}, REFUSED, "from 0 to 127, got -1"),
        ({"prompt": (5, 2**40)}, REFUSED, "got 1099511627776"),
        ({"max_new_tokens": 40_000}, REFUSED, "at most 32768 tokens together"),
        ({"max_new_tokens": 4000}, FAILED, "exceeds the"),
        ({"temperature": -1.0}, REFUSED, "temperature"),
        ({"options": Options(top_p=0.0)}, REFUSED, "top_p"),
        ({"options": Options(logprobs=21)}, REFUSED, "logprobs"),
        ({"options": Options(fields={"presence_penalty": 1.0})}, REFUSED, "presence_penalty"),
        (
            {"options": Options(min_tokens=3), "stop_tokens": tuple(range(128))},
            REFUSED,
            "min_tokens needs a token",
        ),
    ],
)
def test_turn_that_nobody_can_run_ends_with_a_sentence(dedicated, changes, end, says) -> None:
    dedicated.worker.start_turn(structs.replace(turn(3, PROMPTS[0], 5), **changes))
    dedicated.received.wait_ended(3)
    (output,) = dedicated.received.outputs(3)
    assert output.end is end
    assert says in output.error
    dedicated.worker.start_turn(turn(3, PROMPTS[0], 5))
    dedicated.received.wait_ended(3, times=2)
    assert dedicated.received.ends(3)[1] is TurnEnd.FINISHED


# ---- sampling ------------------------------------------------------------------------------------


def test_turn_with_every_parameter_goes_on_at_its_token(dedicated) -> None:
    """It is moved within `min_tokens`; the stop token comes only after them, here and there."""
    options = Options(top_p=0.9, top_k=40, min_p=0.01, min_tokens=12, logprobs=3)
    stops = tuple(range(64))  # About every second token stops the turn.
    dedicated.worker.start_turn(turn(1, PROMPTS[1], 200, options=options, stop_tokens=stops))
    dedicated.received.wait_ended(1)
    whole = dedicated.received.tokens(1)
    assert len(whole) > 12
    assert [token in stops for token in whole] == [False] * (len(whole) - 1) + [True]
    assert dedicated.received.outputs(1)[-1].stop_reason == whole[-1]
    rest = turn(1, PROMPTS[1] + whole[:7], 193, options=options, stop_tokens=stops, first_token=7)
    dedicated.worker.start_turn(rest)
    dedicated.received.wait_ended(1, times=2)
    assert dedicated.received.tokens(1) == whole + whole[7:]
    outputs = dedicated.received.outputs(1)
    top = [one for output in outputs for one in output.top_logprobs]
    logprobs = [one for output in outputs for one in output.logprobs]
    tokens = dedicated.received.tokens(1)
    for token, logprob, likely in zip(tokens, logprobs, top, strict=True):
        assert len(likely) == 3
        assert [one for _, one in likely] == sorted((one for _, one in likely), reverse=True)
        assert dict(likely).get(token, logprob) == logprob
        assert logprob <= likely[0][1]


@pytest.mark.parametrize("is_ignored", [False, True])
def test_end_tokens_of_the_model_end_a_turn_unless_they_are_ignored(is_ignored: bool) -> None:
    made = Dedicated()
    truth = generate_alone(made.model, PROMPTS[0], 40, Sampling(1001, 1.0))
    end = truth[10]
    facts = replace(made.engine.facts, eos_tokens=(end, 3))
    made.worker._facts = facts
    made.start()
    made.worker.start_turn(turn(1, PROMPTS[0], 40, options=Options(ignore_eos=is_ignored)))
    made.received.wait_ended(1)
    made.engine.stop()
    assert made.received.tokens(1) == (truth if is_ignored else truth[: truth.index(end) + 1])
    assert made.received.outputs(1)[-1].stop_reason is None


def test_end_tokens_are_the_list_of_the_generation_config() -> None:
    model = policy(seed=1)
    assert engine_of(model).facts == ModelFacts(128, model.config.max_position_embeddings)
    model.generation_config.eos_token_id = [2, 7, 9999]
    assert engine_of(model).facts.eos_tokens == (2, 7)


def test_tokens_of_a_cached_prefix_are_reported(dedicated) -> None:
    for trajectory in (1, 2):
        dedicated.worker.start_turn(turn(trajectory, PROMPTS[5] * 3, 5))
        dedicated.received.wait_ended(trajectory)
    first, second = (dedicated.received.outputs(one)[-1].cached_tokens for one in (1, 2))
    assert (first, second) == (0, len(PROMPTS[5]) * 3 // 16 * 16)


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


def test_engine_whose_every_step_raises_is_lost(dedicated, monkeypatch: pytest.MonkeyPatch) -> None:
    dedicated.worker.start_turn(turn(1, PROMPTS[0], 1500))
    dedicated.received.wait_tokens(1, 5)

    def fail(*_arguments: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(dedicated.engine.processor.model_runner, "compute_batch", fail)
    dedicated.received.wait_ended(1)
    assert len(dedicated.received.tokens(1)) >= 5
    for trajectory in range(2, FAULTS_MAX + 1):
        dedicated.worker.start_turn(turn(trajectory, PROMPTS[0], 5))
    dedicated.received.wait_for(lambda: dedicated.received.of(WorkerLost), "loss")
    for trajectory in range(1, FAULTS_MAX + 1):
        (end,) = dedicated.received.ends(trajectory)
        assert end is TurnEnd.FAILED
    (lost,) = dedicated.received.of(WorkerLost)
    assert "planted" in lost.reason


def test_worker_needs_an_engine_that_samples_and_suits_its_kind() -> None:
    model = policy(seed=1)
    plain = stock_engine(model, EngineConfig(max_batch_tokens=64), cache_blocks=16)
    with pytest.raises(InvalidArgument, match="sampling=True"):
        EngineWorker(plain, 1, WorkerKind.DEDICATED, Recorder())
    with pytest.raises(InvalidArgument, match="borrowed"):
        EngineWorker(engine_of(model), 1, WorkerKind.BORROWED, Recorder())
