"""What an engine's program is made of: its speed and its weights."""

import queue
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import Unavailable
from rose.node import feed
from rose.node.speed import PREFILL_TOKENS, measure
from rose.transfer import received
from rose.transfer.digests import TileDigests
from rose.transfer.tiles import Tiles
from tests.waiting import LONG_S

MICROSECOND = 1000


# ---- speed ---------------------------------------------------------------------------------------


class Time:
    """Goes on when an engine works."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps by this clock")


@dataclass
class Output:
    left: int
    error: str | None = None

    def is_finished(self) -> bool:
        return self.left == 0


@dataclass
class PricedEngine:
    """Takes exactly so long for a prompt's token, a step, and a sequence in a step."""

    time: Time
    prefill_us: int
    step_us: int
    sequence_us: int
    seats: int
    error: str | None = None
    prompts: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue: queue.Queue = queue.Queue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def submit(self, request_id, prompt, *, max_new_tokens, on_output) -> None:
        self.prompts.append(tuple(prompt))
        self.queue.put((prompt, max_new_tokens, on_output))

    def run(self) -> None:
        while True:
            batch = [self.queue.get(timeout=LONG_S)]
            if batch[0] is None:
                return
            # All seats are asked for at once, with prompts of one token.
            if len(batch[0][0]) == 1 and len(self.prompts) > 5:
                batch += [self.queue.get(timeout=LONG_S) for _ in range(self.seats - 1)]
            new_tokens = batch[0][1]
            prompt_us = len(batch[0][0]) * self.prefill_us
            for number in range(new_tokens):
                decode_us = self.step_us + len(batch) * self.sequence_us
                self.time.ns += MICROSECOND * (decode_us if number else prompt_us)
                for _, _, on_output in batch:
                    on_output(Output(new_tokens - number - 1, self.error))

    def stop(self) -> None:
        self.queue.put(None)
        self.thread.join()


@given(st.integers(1, 10**4), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 9))
def test_speed_is_what_the_engine_takes(prefill_us, step_us, sequence_us, seats) -> None:
    time = Time()
    engine = PricedEngine(time, prefill_us, step_us, sequence_us, seats)
    try:
        speed = measure(engine, time, seats=seats)
    finally:
        engine.stop()
    assert speed.prefill_tokens_per_s == pytest.approx(1e6 / prefill_us)
    assert speed.decode_step_ms + speed.decode_ms_per_sequence == pytest.approx(
        (step_us + sequence_us) / 1000
    )
    assert speed.decode_step_ms > 0, "a scheduler refuses a step that costs nothing"
    if seats > 1:
        most_ms = 0.9 * (step_us + sequence_us) / 1000
        assert speed.decode_ms_per_sequence == pytest.approx(min(sequence_us / 1000, most_ms))
    long = [prompt for prompt in engine.prompts if len(prompt) == PREFILL_TOKENS]
    assert len(set(long)) == len(long) == 4  # No prompt finds the KV of another.


def test_an_engine_that_fails_has_no_speed() -> None:
    engine = PricedEngine(Time(), 1, 1, 1, 2, error="out of blocks")
    try:
        with pytest.raises(Unavailable, match="measures the engine failed: out of blocks"):
            measure(engine, engine.time, seats=2)
    finally:
        engine.stop()


# ---- weights -------------------------------------------------------------------------------------


class Receiver:
    """Hands out what is staged, once, and wants a report before the next."""

    digest = (0, 0)

    def __init__(self, *parts, base, signing, digests, lands) -> None:
        self.on_staged = parts[-1]
        self.staged = [101, 102]
        self.is_out = False
        self.reports: list[str] = []
        self.on_staged()  # It is quicker than whoever made it.
        assert not self.is_out

    def close(self) -> None:
        """Do nothing: there is no thread."""

    def take_staged(self) -> SimpleNamespace | None:
        if self.is_out or not self.staged:
            return None
        self.is_out = True
        version = SimpleNamespace(n=self.staged.pop(0))
        return SimpleNamespace(manifest=SimpleNamespace(version=version))

    def report(self, outcome: str) -> None:
        assert self.is_out
        self.is_out = False
        self.reports.append(outcome)


class Commit:
    state = None

    def __init__(self, staged, weights, base_digest, *, digests, subscribed) -> None:
        self.staged = staged
        self.outcome = f"outcome of {staged.manifest.version.n}"
        self.base, self.digests = digests, None


class CommittingWorker:
    number = 1

    def __init__(self) -> None:
        self.commits: list = []

    def commit(self, commit, version: int, on_done) -> None:
        self.commits.append((commit, version, on_done))


def test_staged_versions_are_committed_one_by_one_and_reported(monkeypatch) -> None:
    monkeypatch.setattr(received, "Receiver", Receiver)
    monkeypatch.setattr(received, "Commit", Commit)
    worker, digests = CommittingWorker(), TileDigests({0: (1, 1)})
    weights = SimpleNamespace(digests=lambda: digests, cut=Tiles.of(4, 4), bits=None)
    receiver = feed.receive("source", weights, worker, name="x", version=100)._receiver
    assert len(worker.commits) == 1
    receiver.on_staged()  # Nothing more is handed out before the report.
    ((commit, version, on_done),) = worker.commits
    assert (commit.base, version) == (digests, 101)
    assert receiver.reports == []  # Not before the engine is done with it.
    on_done(object())
    assert receiver.reports == ["outcome of 101"]
    receiver.on_staged()
    assert (worker.commits[1][0].base, worker.commits[1][1]) == (None, 102)
    worker.commits[1][2](object())
    receiver.on_staged()
    assert receiver.reports == ["outcome of 101", "outcome of 102"]
    assert len(worker.commits) == 2
