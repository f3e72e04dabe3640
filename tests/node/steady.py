"""A plain worker: a thread that says tokens, each a function of seed and position alone."""

import hashlib
import threading
from collections.abc import Callable

from rose.errors import InvalidArgument
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    WorkerEvent,
    WorkerKind,
)

KV_TOKENS = 4096
VERSION = 3


def token_at(seed: int, position: int) -> int:
    """Say the token at a place of the whole sequence."""
    return hashlib.sha256(f"{seed}/{position}".encode()).digest()[0] % 128


def logprob_at(seed: int, position: int) -> float:
    """Say its logprob: a double whose last bits matter."""
    return -int.from_bytes(hashlib.sha256(f"{seed}:{position}".encode()).digest()[:6]) / 3e13


class SteadyWorker:
    """Says one token of each turn in turn, one `pace_s` after the other."""

    kind = WorkerKind.DEDICATED

    def __init__(
        self, number: int, on_event: Callable[[WorkerEvent], None], *, pace_s: float = 0.0005
    ) -> None:
        self.number = number
        self.on_event = on_event
        self._pace_s = pace_s
        self._lock = threading.Lock()
        self._turns: dict[int, tuple[TurnRequest, int]] = {}
        self._is_stopped = threading.Event()
        on_event(GrantChanged(worker=number, grant_epoch=1, kv_tokens=KV_TOKENS, ttl_ms=0))
        self._thread = threading.Thread(target=self._run, name="steady-worker")
        self._thread.start()

    def start_turn(self, request: TurnRequest) -> None:
        if len(request.prompt) > KV_TOKENS:
            raise InvalidArgument("the prompt is longer than the lease")
        with self._lock:
            self._turns[request.trajectory] = (request, 0)

    def stop_turn(self, trajectory: int) -> None:
        with self._lock:
            request, said = self._turns.pop(trajectory, (None, 0))
        if request is not None:
            self.on_event(self._output(request, said, (), TurnEnd.INTERRUPTED))

    def running(self) -> set[int]:
        with self._lock:
            return set(self._turns)

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._pace_s):
            with self._lock:
                for trajectory, (request, said) in list(self._turns.items()):
                    is_last = said + 1 == request.max_new_tokens
                    end = TurnEnd.FINISHED if is_last else None
                    # Under the lock: a stop that comes meanwhile has the last word.
                    self.on_event(self._output(request, said, (said,), end))
                    if is_last:
                        del self._turns[trajectory]
                    else:
                        self._turns[trajectory] = (request, said + 1)

    def _output(
        self, request: TurnRequest, said: int, places: tuple[int, ...], end: TurnEnd | None
    ) -> TurnOutput:
        at = [len(request.prompt) + place for place in places]
        return TurnOutput(
            worker=self.number,
            trajectory=request.trajectory,
            turn=request.turn,
            grant_epoch=request.grant_epoch,
            first_token=request.first_token + said,
            tokens=tuple(token_at(request.seed, position) for position in at),
            logprobs=tuple(logprob_at(request.seed, position) for position in at),
            versions=(VERSION,) * len(at),
            end=end,
        )
