"""Workers for trying out the service: they need no model, and their tokens are reproducible."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from rose.adapters.conversations import common_tokens, packed
from rose.adapters.fleet_limits import FleetLimits
from rose.clock import BootClock
from rose.closing import Closing
from rose.scheduler.turns import Capabilities
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerEvent,
    WorkerKind,
)
from rose.thread import Thread
from rose.units import MS_PER_S

VOCABULARY: Final = 256
_LOGPROB: Final = -5.545177444479562  # ln(1 / VOCABULARY): all tokens are equally likely
SEATS: Final = 64
KV_TOKENS: Final = 1 << 20
# A token depends on nothing that top_p, top_k or a penalty could change, so they are refused.
FEATURES: Final = frozenset({"min_tokens", "logprobs"})
# Conversations whose tokens the worker remembers, as a prefix cache would.
_CACHED: Final = 1024


def trial_token(seed: int, place: int, version: int) -> int:
    """Return a token: a hash of the seed, the token's index in the context and the version."""
    text = f"{seed} {place} {version}".encode()
    return blake2b(text, digest_size=1).digest()[0]


class TrialWorker(Closing):
    """A worker whose thread generates one token of every turn in each step.

    Args:
        number: number of the worker.
        kind: dedicated or borrowed.
        on_event: function that receives the worker's events, in any thread; it must not wait.
        step_s: duration of a step in seconds; 0: no thread, and the caller runs each step by
            `step`.
    """

    def __init__(
        self,
        number: int,
        kind: WorkerKind,
        on_event: Callable[[WorkerEvent], None],
        *,
        step_s: float = 0.01,
    ) -> None:
        self.number = number
        self.kind = kind
        self.version = 0
        self.step_s = step_s
        self._report = on_event
        self._clock = BootClock()
        self._lock = threading.RLock()  # guards all fields below, and the order of events
        self._turns: dict[int, _Turn] = {}
        self._cache: dict[int, bytes] = {}  # context by trajectory, the oldest first
        self._epoch = 0
        self._is_granted = False
        self._is_closed = False
        self._thread = Thread(self._run, name=f"rose-trial-{number}", on_failure=lambda _: None)
        if step_s > 0:
            self._thread.start()

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities for the worker's registration."""
        step_ms = max(self.step_s, 1e-4) * MS_PER_S
        return Capabilities(
            SEATS, prefill_tokens_per_s=1e6, decode_step_ms=step_ms, version=self.version
        )

    @property
    def limits(self) -> FleetLimits:
        """Limits of the worker, for its registration."""
        return FleetLimits(None, KV_TOKENS, (), FEATURES, None)  # It reads any id.

    def grant(self) -> None:
        """Report a new capacity grant."""
        with self._lock:
            self._epoch += 1
            self._is_granted = True
            self._report(GrantChanged(self.number, self._epoch, KV_TOKENS, ttl_ms=0.0))

    def revoke(self) -> None:
        """Return all turns, then the capacity grant."""
        with self._lock:
            self._is_granted = False
            for trajectory in tuple(self._turns):
                self.stop_turn(trajectory)
            self._cache.clear()
            self._report(GrantChanged(self.number, self._epoch, 0, ttl_ms=0.0))

    def commit(self, version: int) -> None:
        """Use weights of another version from the next token on."""
        with self._lock:
            self.version = version
            self._cache.clear()
            self._report(VersionCommitted(self.number, version, is_match=True, pause_ms=0.0))

    def start_turn(self, request: TurnRequest) -> None:
        """Start a turn. A turn for an earlier capacity grant is interrupted at once."""
        with self._lock:
            turn = _Turn(request)
            if self._is_granted and request.grant_epoch == self._epoch:
                there = self._cache.pop(request.trajectory, b"")
                turn.cached_tokens = common_tokens(packed(request.prompt), there)
                self._turns[request.trajectory] = turn
            else:
                self._send(turn, (), TurnEnd.INTERRUPTED)

    def stop_turn(self, trajectory: int) -> None:
        """Interrupt a turn."""
        with self._lock:
            if (turn := self._turns.pop(trajectory, None)) is not None:
                self._keep(turn)
                self._send(turn, (), TurnEnd.INTERRUPTED)

    def step(self) -> None:
        """Generate one token of each turn."""
        with self._lock:
            for turn in tuple(self._turns.values()):
                request, count = turn.request, len(turn.tokens) + 1
                token = trial_token(request.seed, len(request.prompt) + count - 1, self.version)
                is_free = request.first_token + count > request.options.min_tokens
                while not is_free and token in request.stop_tokens:
                    token = (token + 1) % VOCABULARY
                is_over = count == request.max_new_tokens or token in request.stop_tokens
                self._send(turn, (token,), TurnEnd.FINISHED if is_over else None)
                turn.tokens.append(token)
                if is_over:
                    del self._turns[request.trajectory]
                    self._keep(turn)

    def close(self) -> None:
        """Stop generating."""
        with self._lock:
            self._is_closed = True
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            self._clock.sleep(self.step_s)
            self.step()

    def _keep(self, turn: "_Turn") -> None:
        """Remember the context of a turn that ends here."""
        self._cache[turn.request.trajectory] = packed((*turn.request.prompt, *turn.tokens))
        if len(self._cache) > _CACHED:
            del self._cache[next(iter(self._cache))]

    def _send(self, turn: "_Turn", tokens: tuple[int, ...], end: TurnEnd | None) -> None:
        of, count = turn.request, len(tokens)
        best = tuple((token, _LOGPROB) for token in range(of.options.logprobs))
        self._report(
            TurnOutput(
                self.number,
                of.trajectory,
                of.turn,
                of.grant_epoch,
                of.first_token + len(turn.tokens),
                tokens,
                (_LOGPROB,) * count,
                (self.version,) * count,
                end,
                top_logprobs=(best,) * count if best else (),
                cached_tokens=turn.cached_tokens,
            )
        )


@dataclass(slots=True)
class _Turn:
    """A turn on a trial worker, with its tokens so far."""

    request: TurnRequest
    tokens: list[int] = field(default_factory=list)
    cached_tokens: int = 0


async def commit_trial_weights(
    workers: Sequence[TrialWorker],
    infos: Sequence[Mapping[str, Any]],  # noqa: ARG001 (trial workers have no weights)
    version: int,
) -> None:
    """Make all trial workers commit a version; a `WeightSource` for trying out the service."""
    for worker in workers:
        worker.commit(version)
