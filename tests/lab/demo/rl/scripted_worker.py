"""A worker without a thread: it outputs the tokens of `tests/lab/demo/rl/play.py` on demand."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    WorkerEvent,
    WorkerKind,
)
from rose_lab.demo.environments.text import EOS
from tests.lab.demo.rl.play import logprob_at, token_at, version_at

KV_TOKENS = 20_000


class Violation(BaseException):
    """The scheduler asked for what it must not; no error of a worker, so nothing forgives it."""


@dataclass
class Running:
    request: TurnRequest
    said: int = 0
    is_over: bool = False  # all was said, and the end not reported


class ScriptedWorker:
    def __init__(
        self,
        number: int,
        kind: WorkerKind,
        on_event: Callable[[WorkerEvent], None],
        *,
        ttl_ms: float = 0.0,
    ) -> None:
        self.number = number
        self.kind = kind
        self.is_up = True
        self.epoch = 0
        self.kv_tokens = 0
        self.asked: list[TurnRequest] = []  # heard while it was up
        self.has_resumed: set[int] = set()  # it was to go on with these, heard or not
        self.running: dict[int, Running] = {}
        # A test that lets it speak in a thread of its own has it stopped from the loop's.
        self.lock = threading.RLock()
        self._on_event = on_event
        self._ttl_ms = ttl_ms

    # ---- the loop calls

    def start_turn(self, request: TurnRequest) -> None:
        with self.lock:
            self.has_resumed |= {request.trajectory} if request.first_token else set()
            if not self.is_up:
                return  # As a stream that has broken: nobody knows yet.
            if request.trajectory in self.running:
                raise Violation("it was not stopped before")
            if request.first_token and request.prompt[-1] == EOS:
                raise Violation("it is over already")
            self.asked.append(request)
            self.running[request.trajectory] = Running(request)
            if request.grant_epoch != self.epoch:
                self.leave(request.trajectory, TurnEnd.INTERRUPTED)

    def stop_turn(self, trajectory: int) -> None:
        with self.lock:
            if trajectory in self.running:
                self.leave(trajectory, TurnEnd.INTERRUPTED)

    # ---- the test calls

    def grant(self, kv_tokens: int = KV_TOKENS) -> None:
        self.epoch += 1
        self.kv_tokens = kv_tokens
        self.report_grant()

    def revoke(self) -> None:
        """Take every turn back first, as serving does, and say so after."""
        for trajectory in list(self.running):
            self.leave(trajectory, TurnEnd.INTERRUPTED)
        self.kv_tokens = 0
        self.report_grant()

    def report_grant(self) -> None:
        self._on_event(GrantChanged(self.number, self.epoch, self.kv_tokens, self._ttl_ms))

    def output(self, trajectory: int, tokens: int, *, with_end: bool = True) -> None:
        """Say so many tokens, or fewer if the turn is over before."""
        run = self.running[trajectory]
        first, request = run.said, run.request
        while run.said < first + tokens and not run.is_over:
            token = token_at(request.seed, len(request.prompt) + run.said)
            run.said += 1
            run.is_over = token in request.stop_tokens or run.said == request.max_new_tokens
        if run.is_over and with_end:
            del self.running[trajectory]
        end = TurnEnd.FINISHED if run.is_over and with_end else None
        if run.said > first or end is not None:
            self._on_event(self._output(run, first, end))

    def leave(self, trajectory: int, end: TurnEnd) -> None:
        run = self.running.pop(trajectory)
        self._on_event(self._output(run, run.said, end))

    def _output(self, run: Running, first: int, end: TurnEnd | None) -> TurnOutput:
        request = run.request
        places = [len(request.prompt) + place for place in range(first, run.said)]
        return TurnOutput(
            worker=self.number,
            trajectory=request.trajectory,
            turn=request.turn,
            grant_epoch=request.grant_epoch,
            first_token=request.first_token + first,
            tokens=tuple(token_at(request.seed, place) for place in places),
            logprobs=tuple(logprob_at(request.seed, place) for place in places),
            versions=tuple(version_at(request.seed, place) for place in places),
            end=end,
        )
