"""Requests under way when the weights change keep their KV, have it computed again, or end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rose.clock import BootClock
from rose.engines.transformers import (
    EngineConfig,
    EngineWorker,
    LiveWeights,
    Sampling,
)
from rose.errors import InvalidArgument
from rose.scheduler.worker import TurnEnd, WorkerKind
from rose.transfer.digests import TileDigests
from rose.transfer.receiving.commit import CommitState
from rose.transfer.receiving.scrub import Scrub
from tests.engines.intact import is_intact
from tests.engines.pair import WAIT_S, Client
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
from tests.waiting import wait_for

PROMPTS = [[(7 * place + 3 * one) % 128 for place in range(40 + 9 * one)] for one in range(3)]
TOKENS = 100
SAMPLING = Sampling(seed=77, temperature=1.0)


class Live:
    """An engine over live weights, with requests under way."""

    def __init__(self, **settings: object) -> None:
        self.model = policy(seed=8)
        self.weights = LiveWeights(self.model, tile_elements=TILE)
        self.engine = engine_of(self.model, **settings)
        self.engine.start()
        self.client = Client(self.engine, "under way", 1)
        self.names = [
            self.client.send(prompt=prompt, new_tokens=TOKENS, sampling=SAMPLING)
            for prompt in PROMPTS
        ]

    def commit(self, *, end: CommitState = CommitState.COMMITTED) -> None:
        wait_for(lambda: all(len(self.client.streamed.get(name, ())) > 5 for name in self.names))
        done = threading.Event()
        fresh = later(self.weights.row, seed=1)
        self.engine.commit(
            TileCommit(self.weights, fresh, end=end),
            version=1,
            on_done=lambda _committed: done.set(),
        )
        assert done.wait(WAIT_S)

    def answers(self) -> list:
        self.client.wait()
        return [self.client.answers[name] for name in self.names]


@contextmanager
def live_of(**settings: object) -> Iterator[Live]:
    live = Live(**settings)
    try:
        yield live
    finally:
        live.engine.stop()


def test_recomputed_requests_go_on_as_a_fresh_engine_of_the_new_weights_would() -> None:
    with live_of(inflight="recompute", prefix_cache=True) as live:
        old = copy_of(live.model)
        live.commit()
        for prompt, output in zip(PROMPTS, live.answers(), strict=True):
            switched = output.versions.index(1)
            assert output.versions == [0] * switched + [1] * (TOKENS - switched)
            said = output.generated_tokens
            assert len(said) == len(output.logprobs) == TOKENS
            assert said[:switched] == generate_alone(old, prompt, switched, SAMPLING)
            truth = true_logprobs(live.model, prompt, said, 1.0)
            # As if all of it had been read by the new weights, which is what a fresh engine does.
            assert output.logprobs[switched:] == pytest.approx(truth[switched:], abs=1e-4)


def test_worker_reports_aborted_turns_as_interrupted_and_they_resume_at_the_token() -> None:
    model = policy(seed=9)
    weights = LiveWeights(model, tile_elements=TILE)
    engine = engine_of(model, inflight="abort")
    received = Recorder()
    worker = EngineWorker(engine, 4, WorkerKind.DEDICATED, received, flush_ms=0.0)
    engine.start()
    try:
        received.wait_lease(lambda _: True)
        worker.start_turn(turn(1, PROMPTS[0], 300))
        received.wait_tokens(1, 5)
        worker.commit(TileCommit(weights, later(weights.row, seed=1)), 7)
        received.wait_ended(1)
        assert received.ends(1) == [TurnEnd.INTERRUPTED]
        said = received.tokens(1)
        assert 5 <= len(said) < 300
        worker.start_turn(turn(1, PROMPTS[0] + said, 300 - len(said), first_token=len(said)))
        received.wait_ended(1, times=2)
        assert received.ends(1)[-1] is TurnEnd.FINISHED
        assert received.outputs(1)[-1].versions[-1] == 7
    finally:
        engine.stop()


def test_way_with_requests_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="recompute"):
        EngineConfig(inflight="forget")


# ---- the scrub, between steps -------------------------------------------------------------------


def test_scrub_runs_between_steps_and_finds_and_repairs_what_is_corrupt() -> None:
    model = policy(seed=9)
    weights = LiveWeights(model, tile_elements=TILE)
    engine = engine_of(model)
    received, scrubbed, repaired = Recorder(), [], []
    worker = EngineWorker(engine, 4, WorkerKind.DEDICATED, received, flush_ms=0.0, scrub_ms=0.0)
    digests = TileDigests({tile: weights.digest(tile) for tile in range(weights.tiles)})
    weights.row[TILE + 5] ^= 1  # The row drifted, and
    weights._live_bits[2 * TILE + 7] ^= 1  # elsewhere what steps read of it.
    engine.start()
    try:
        received.wait_lease(lambda _: True)
        repair = lambda tile: weights.repair(tile) and repaired.append(tile)  # noqa: E731
        scrub = Scrub(weights, digests, clock=BootClock(), repair=repair)
        worker.scrub(scrub, scrubbed.append)
        worker.start_turn(turn(1, PROMPTS[0], 4 * weights.tiles))
        received.wait_ended(1)
        wait_for(lambda: bool(scrubbed))
    finally:
        engine.stop()
    assert scrubbed == [scrub]
    assert list(scrub.corrupted) == [1]
    assert repaired == [1, 2]  # What steps read follows the row, so that a repair reaches it.
    assert is_intact(weights)
