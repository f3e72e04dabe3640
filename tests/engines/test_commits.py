"""Commits between two steps: which weights a token comes from, and which KV a request may read."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from rose.engines.transformers import Committed, Engine, LiveWeights, Sampling
from rose.errors import Unavailable
from rose.transfer.receiving.commit import CommitState
from tests.engines.intact import flat_bits, is_intact
from tests.engines.pair import WAIT_S, Client
from tests.engines.policies import (
    TILE,
    TileCommit,
    engine_of,
    generate_alone,
    later,
    policy,
    true_logprobs,
)
from tests.waiting import wait_for

PROMPT = [(7 * place + 3) % 128 for place in range(70)]
SAMPLING = Sampling(seed=77, temperature=1.0)


class Live:
    """An engine over live weights, and what its commits said."""

    def __init__(self, **settings) -> None:
        self.model = policy(seed=8)
        self.weights = LiveWeights(self.model, tile_elements=TILE)
        self.engine: Engine = engine_of(self.model, **settings)
        self.ends: list[Committed] = []
        self.ended = threading.Semaphore(0)

    def on_done(self, committed: Committed) -> None:
        self.ends.append(committed)
        self.ended.release()

    def ask(self, version: int, *, end: CommitState = CommitState.COMMITTED) -> TileCommit:
        fresh = later(self.weights.row, seed=version)
        commit = TileCommit(self.weights, fresh, end=end)
        self.engine.commit(commit, version=version, on_done=self.on_done)
        return commit

    def commit(self, version: int, *, end: CommitState = CommitState.COMMITTED) -> TileCommit:
        commit = self.ask(version, end=end)
        assert self.ended.acquire(timeout=WAIT_S)
        return commit


@pytest.fixture
def live() -> Iterator[Live]:
    made = Live(prefix_cache=True)
    made.engine.start()
    yield made
    made.engine.stop()


def test_idle_engine_commits_and_runs_the_new_weights(live: Live) -> None:
    before = live.weights.row.copy()
    commit = live.commit(5)
    assert commit.slices == live.weights.tiles > 3
    assert live.ends == [
        Committed(5, is_match=True, is_quarantined=False, pause_ms=live.ends[0].pause_ms)
    ]
    assert live.ends[0].pause_ms > 0
    assert live.engine.version == 5
    assert not np.array_equal(live.weights.row, before)
    assert np.array_equal(flat_bits(live.model), live.weights.row)
    assert is_intact(live.weights)


def test_commit_ends_the_wait_of_an_idle_loop() -> None:
    live = Live()
    live.engine.manager.background_thread_status.clear()
    live.engine.manager._wake_up_loop.clear()
    live.ask(1)
    assert live.engine.manager._wake_up_loop.is_set()


def test_request_after_a_commit_reads_no_kv_of_the_version_before(live: Live) -> None:
    """While one of the old version runs on, with full blocks of the same prompt."""
    client = Client(live.engine, "reuse", 2)
    client.send(prompt=PROMPT, new_tokens=3, sampling=SAMPLING)
    client.wait()
    running = client.send(prompt=PROMPT, new_tokens=700, sampling=SAMPLING)

    def let_it_say(tokens: int) -> None:
        said = len(client.streamed.get(running, ()))
        wait_for(lambda: len(client.streamed.get(running, ())) > said + tokens)

    for version in (1, 2):
        let_it_say(40)
        live.commit(version)
        for prompt in (PROMPT, PROMPT[:50]):
            let_it_say(20)  # some blocks are completed by the old request under the new weights
            name = client.send(prompt=prompt, new_tokens=12, sampling=SAMPLING)
            wait_for(lambda name=name: name in client.answers)
            output = client.answers[name]
            truth = true_logprobs(live.model, prompt, output.generated_tokens, 1.0)
            assert output.logprobs == pytest.approx(truth, abs=1e-4)
    assert running not in client.answers
    live.engine.cancel(running)
    client.wait()


def test_commit_that_goes_back_changes_nothing(live: Live) -> None:
    before = live.weights.row.copy()
    said = generate_alone(live.model, PROMPT, 10, SAMPLING)
    live.commit(3, end=CommitState.ROLLED_BACK)
    assert (live.ends[0].version, live.ends[0].is_match) == (0, False)
    assert live.engine.version == 0
    assert np.array_equal(live.weights.row, before)
    assert is_intact(live.weights)
    client = Client(live.engine, "after", 4)
    name = client.send(prompt=PROMPT, new_tokens=10, sampling=SAMPLING)
    client.wait()
    assert client.answers[name].generated_tokens == said


def test_engine_in_quarantine_runs_no_step_until_a_commit_goes_well(live: Live) -> None:
    live.commit(1, end=CommitState.QUARANTINED)
    assert live.ends[0].is_quarantined
    assert live.engine.is_quarantined
    client = Client(live.engine, "held", 5)
    name = client.send(prompt=PROMPT, new_tokens=3, sampling=SAMPLING)
    live.commit(2, end=CommitState.ROLLED_BACK)
    assert live.ends[1].is_quarantined  # it went back to weights of no version
    assert client.streamed == {}
    live.commit(3)
    client.wait()
    assert client.answers[name].versions == [3, 3, 3]
    assert not live.engine.is_quarantined


def test_stopped_engine_brings_a_half_done_commit_back() -> None:
    live = Live()
    base = live.weights.row.copy()
    half, go_on = threading.Event(), threading.Event()

    class Slow(TileCommit):
        def step(self) -> bool:
            is_more = super().step()
            if self.slices == 2:
                half.set()
                assert go_on.wait(WAIT_S)
            return is_more

    commit = Slow(live.weights, later(base, seed=1))
    second = TileCommit(live.weights, later(base, seed=2))
    live.engine.start()
    live.engine.commit(commit, version=1, on_done=live.on_done)
    live.engine.commit(second, version=2, on_done=live.on_done)
    assert half.wait(WAIT_S)
    stopping = threading.Thread(target=live.engine.stop)
    stopping.start()
    wait_for(lambda: not live.engine.is_accepting)
    go_on.set()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert commit.slices == 2
    assert second.slices == 0
    assert [(end.version, end.is_match) for end in live.ends] == [(0, False)] * 2
    assert np.array_equal(live.weights.row, base)
    assert is_intact(live.weights)
    with pytest.raises(Unavailable):
        live.ask(3)
