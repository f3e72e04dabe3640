"""A real engine that serves, and a trainer in another process that sends it versions.

Latency of requests is measured in alternating windows with and without updates.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from bench.paired import quantile
from bench.refit_peers import Bits
from bench.refit_ranks import Rank
from bench.row_publisher import RowPublisher
from rose.errors import Unavailable, check
from rose.transfer import Commit, Receiver, VersionLog
from rose.transfer.manifest import NAMELESS, Subscription
from rose.transfer.receiving.commit import CommitState
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve

MODEL: Final = "tiny-qwen2"
SEED: Final = 1
CLIENTS: Final = 4  # each waits for its answer before the next request
PROMPT_TOKENS: Final = 48
NEW_TOKENS: Final = 12
UPDATE_EVERY_S: Final = (
    0.25  # more often than any trainer, so that more than 1 % of tokens meet an update
)
_DENSITY: Final = 0.01
_DEADLINE_S: Final = 60.0
_PAGES: Final = 1024


@dataclass(frozen=True, slots=True)
class Felt:
    """Latency of a window's requests.

    Args:
        ttft_ms_p99: time from the request to the first token.
        tpot_ms_p99: time between two tokens.
    """

    ttft_ms_p99: float
    tpot_ms_p99: float


@dataclass(slots=True)
class _Request:
    """A running request. The engine's thread writes it; its client reads it at the end."""

    asked_ns: int
    tokens_ns: list[int] = field(default_factory=list)
    failure: object = None
    is_over: threading.Event = field(default_factory=threading.Event)

    def hear(self, output: Any) -> None:
        now_ns = time.perf_counter_ns()
        fresh = len(output.generated_tokens) - len(self.tokens_ns)
        self.tokens_ns += [now_ns] * fresh
        if output.is_finished():
            self.failure = output.failure
            self.is_over.set()


def send_updates(line: Connection, weights: Bits) -> None:
    """Run the trainer until killed: publish the other of two versions on each request.

    It sends address and token first, and a confirmation after each version.
    """
    rng = np.random.default_rng(7)
    other = weights ^ (rng.random(len(weights)) < _DENSITY).astype(np.uint16)
    log = VersionLog(versions_max=4)
    publisher = RowPublisher(weights, "bench", 1, 1, log)
    server = serve(log)
    line.send((server.address, server.token))
    for new in itertools.cycle((other, weights)):
        line.recv()
        publisher.publish(new)
        line.send(publisher.version.n)


class ServedEngine:
    """An engine with clients, and a receiver that commits versions between its steps."""

    def __init__(self, engine: Any, weights: Any, trainer: Rank) -> None:
        self._engine = engine
        self._weights = weights
        self._trainer = trainer
        self._digests = weights.digests()
        self._names = itertools.count()
        self._committed = threading.Semaphore(0)
        self.pauses_ms: list[float] = []
        address, token = trainer.hear()
        self._source = RemoteSource(address, token)
        self._receiver: Receiver | None = None

    def follow(self) -> None:
        """Begin to receive; return when the engine runs the trainer's version."""
        receiver = Receiver(
            self._source,
            "engine",
            NAMELESS,
            self._digests.total,
            Subscription(self._weights.cut),
            self._on_staged,
            digests=self._digests.copy(),
        )
        self._receiver = receiver
        self._on_staged()
        self._await_commit()

    def update(self) -> None:
        """Request a version, and wait until the engine runs on it."""
        self._trainer.say("publish")
        self._trainer.hear()
        self._await_commit()

    def window(self, seconds: float, *, has_updates: bool) -> Felt:
        """Serve for a while and return the latency; updates begin and end within this time."""
        requests: list[_Request] = []
        ends_ns = time.perf_counter_ns() + int(seconds * 1e9)
        clients = [
            threading.Thread(target=self._ask_until, args=(ends_ns, requests), name="client")
            for _ in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        try:
            while has_updates and time.perf_counter_ns() < ends_ns:
                began_ns = time.perf_counter_ns()
                self.update()
                took_s = (time.perf_counter_ns() - began_ns) / 1e9
                time.sleep(max(0.0, UPDATE_EVERY_S - took_s))
        finally:
            for client in clients:
                client.join(2 * _DEADLINE_S)
        failures = [one.failure for one in requests if one.failure is not None]
        check(not failures, f"a request failed: {failures[:1]}")
        return felt(requests)

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        self._source.close()

    def _ask_until(self, ends_ns: int, requests: list[_Request]) -> None:
        while time.perf_counter_ns() < ends_ns:
            number = next(self._names)
            prompt = [1 + (number * 31 + position) % 100 for position in range(PROMPT_TOKENS)]
            request = _Request(time.perf_counter_ns())
            self._engine.submit(
                f"request-{number}", prompt, max_new_tokens=NEW_TOKENS, on_output=request.hear
            )
            if not request.is_over.wait(_DEADLINE_S):
                request.failure = f"request {number} is not over after {_DEADLINE_S:g} s"
                ends_ns = 0
            requests.append(request)

    def _on_staged(self) -> None:
        receiver = self._receiver
        staged = None if receiver is None else receiver.take_staged()
        if receiver is None or staged is None:
            return
        commit = Commit(staged, self._weights, receiver.digest, digests=self._digests)

        def done(committed: Any) -> None:
            check(commit.state is CommitState.COMMITTED, f"{commit.outcome}")
            self.pauses_ms.append(committed.pause_ms)
            self._digests = commit.digests
            receiver.report(commit.outcome)
            self._committed.release()

        self._engine.commit(commit, version=staged.manifest.version.n, on_done=done)

    def _await_commit(self) -> None:
        if not self._committed.acquire(timeout=_DEADLINE_S):
            failure = None if self._receiver is None else self._receiver.failure
            raise Unavailable(f"no commit within {_DEADLINE_S:g} s: {failure}")


def felt(requests: list[_Request]) -> Felt:
    """Return the percentiles of the answered requests."""
    ttft_ns = [one.tokens_ns[0] - one.asked_ns for one in requests]
    tpot_ns = [
        later - sooner for one in requests for sooner, later in itertools.pairwise(one.tokens_ns)
    ]
    return Felt(quantile(ttft_ns, 0.99) / 1e6, quantile(tpot_ns, 0.99) / 1e6)


@contextmanager
def served_engine() -> Iterator[ServedEngine]:
    """Start an engine on one thread, and a trainer; stop both after the body."""
    import torch

    from rose.engines.transformers import EngineConfig, LiveWeights, load_model, stock_engine

    with ExitStack() as parts:
        parts.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # the other core transfers the updates
        model = load_model(MODEL, seed=SEED)
        weights = LiveWeights(model)
        engine = stock_engine(model, EngineConfig(), cache_blocks=_PAGES)
        trainer = Rank("", send_updates, weights.row.copy())
        parts.callback(trainer.end)
        served = ServedEngine(engine, weights, trainer)
        engine.start()
        parts.callback(engine.stop)
        parts.callback(served.close)
        served.follow()
        yield served
