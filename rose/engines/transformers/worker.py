"""An engine as a worker of the scheduler: turns in, tokens and grant changes out."""

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from transformers.generation.continuous_batching.requests import RequestStatus

from rose.engines.transformers.capacity import CacheCapacity, LaneCapacity
from rose.engines.transformers.commits import Committed, OnCommitted
from rose.engines.transformers.engine import Engine
from rose.engines.transformers.grants import CapacityGrants
from rose.engines.transformers.outputs import Output
from rose.engines.transformers.rollout_processor import RolloutProcessor
from rose.engines.transformers.sampling import Sampling
from rose.engines.transformers.turns import Turn, checked_sampling
from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.worker import (
    TurnEnd,
    TurnRequest,
    VersionCommitted,
    WorkerEvent,
    WorkerKind,
    WorkerLost,
)
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.scrub import Scrub
from rose.units import NS_PER_MS

SCRUB_MS: Final = 0.5


def _nothing(_scrub: Scrub) -> None:
    pass


class EngineWorker:
    """Runs turns on an engine. A `rose.scheduler.worker.Worker`.

    Commands are queued for the loop thread, which executes them between two steps, or while a step
    is parked at a closed gate. Only that thread touches the state. It calls `on_event` with no lock
    held, so a revocation never waits for the callback. If the loop is frozen or dead, nothing
    renews the capacity grant, so the grant expires.

    A dedicated worker has a capacity grant from the engine's start, a borrowed one between `grant`
    and `revoke`. When serving takes slabs, turns with KV in these slabs are reported INTERRUPTED,
    and the grant shrinks to the remaining loan. A grant that would shrink to nothing ends, and a
    new one with a higher epoch begins when serving lends again. A grant also ends when the worker's
    steps are refused for too long: a worker that cannot run gives its turns back.

    Args:
        engine: engine built with `EngineConfig(sampling=True)`, not started; a borrower's engine
            (`rollout_engine`) if `kind` is borrowed.
        number: number of the worker in events.
        kind: dedicated or borrowed.
        on_event: called in the loop thread; must be quick and must not raise.
        flush_ms: approximate longest delay before tokens are reported.
        ttl_ms: TTL of a borrowed worker's grant.
        scrub_ms: time for scrubbing between two steps; at least one tile is checked each time.

    Raises:
        InvalidArgument: the engine does not sample, or does not match `kind`.
    """

    def __init__(
        self,
        engine: Engine,
        number: int,
        kind: WorkerKind,
        on_event: Callable[[WorkerEvent], None],
        *,
        flush_ms: float = 100.0,
        ttl_ms: float = 2000.0,
        scrub_ms: float = SCRUB_MS,
    ) -> None:
        processor = engine.processor
        if not processor.is_sampling:
            raise InvalidArgument(
                "a worker needs an engine that samples: build it with EngineConfig(sampling=True)"
            )
        is_borrowed = kind is WorkerKind.BORROWED
        if is_borrowed != isinstance(processor, RolloutProcessor):
            raise InvalidArgument(
                f"a {kind.value} worker needs another engine: rollout_engine builds engines of "
                "borrowed workers, stock_engine those of dedicated workers"
            )
        self._engine = engine
        self._number = number
        self._kind = kind
        self._on_event = on_event
        self._flush_ms = flush_ms
        self._scrub_ms = scrub_ms
        self._clock = processor.clock
        self._facts = engine.facts
        self._inbox: deque[Callable[[], None]] = deque()
        self._ids = itertools.count()
        # Only the loop thread uses the attributes below.
        self._capacity = (
            LaneCapacity(processor, self._clock)
            if isinstance(processor, RolloutProcessor)
            else CacheCapacity(processor.cache)
        )
        self._grants = CapacityGrants(number, ttl_ms if is_borrowed else 0.0)
        self._is_granted = not is_borrowed
        self._is_short = False
        self._is_lost = False
        self._turns: dict[int, Turn] = {}
        self._ended: list[Turn] = []
        self._flushed_ms = self._now_ms()
        self._scrub: Scrub | None = None
        self._on_scrubbed: Callable[[Scrub], None] = _nothing
        processor.listener = self

    # ---- any thread -----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Number of the worker in events and actions."""
        return self._number

    @property
    def kind(self) -> WorkerKind:
        """Dedicated or borrowed."""
        return self._kind

    def start_turn(self, request: TurnRequest) -> None:
        """Queue a turn; if it cannot run, a failed output follows.

        A turn under an expired grant is reported INTERRUPTED; a repeated request is ignored.
        """
        self._send(partial(self._start, request))

    def stop_turn(self, trajectory: int) -> None:
        """Recall a trajectory's turn, if it runs here; the turn's last output is INTERRUPTED."""
        self._send(partial(self._stop, trajectory))

    def grant(self) -> None:
        """Accept turns from now on, under a new capacity grant."""
        self._send(self._begin)

    def revoke(self) -> None:
        """Make the loop thread recall every turn, end the grant, and report both."""
        self._send(self._end)

    def commit(self, commit: Commit, version: int, on_done: OnCommitted | None = None) -> None:
        """Change the weights at the next step boundary, then report `VersionCommitted`.

        If the weights then match no version, the worker ends its grant, and accepts turns again
        after a successful commit.

        Args:
            commit: transaction over the live weights of the engine's model.
            version: version after a successful commit.
            on_done: called with the result too, in the loop thread.

        Raises:
            Unavailable: the engine is stopping or has died.
        """
        self._engine.commit(
            commit, version=version, on_done=partial(self._committed, on_done=on_done)
        )

    def scrub(self, scrub: Scrub, on_scrubbed: Callable[[Scrub], None]) -> None:
        """Check the weights between steps, a little each time; replaces an earlier scrub.

        Args:
            scrub: scrub over the weights of the engine.
            on_scrubbed: called when the scrub is over, in the loop thread; must not wait.
        """
        self._send(partial(self._begin_scrub, scrub, on_scrubbed))

    def _send(self, command: Callable[[], None]) -> None:
        self._inbox.append(command)
        self._engine.wake()

    # ---- the loop thread: calls of the loop -----------------------------------------------------

    def at_boundary(self) -> None:
        """Execute commands and report events; no step runs meanwhile."""
        self._look()
        can_run = not self._engine.is_quarantined and not self._capacity.is_shut_out
        if self._is_granted and can_run:
            self._open_or_regrow()

    def after_step(self) -> None:
        """Report tokens and scrub a little; for a borrower this is part of the step's quantum."""
        self._report_ended()
        if self._now_ms() - self._flushed_ms >= self._flush_ms:
            self._flush()
        if self._scrub is not None and not self._scrub.step(self._scrub_ms):
            scrub, self._scrub = self._scrub, None
            self._on_scrubbed(scrub)

    def while_parked(self) -> None:
        """Renew the grant and recall turns although a step is parked; tokens can wait."""
        self._look()

    def at_end(self, error: Exception) -> None:
        """Report the last tokens, and the loss of the worker."""
        self._report_ended()
        self._stop_all()
        self._emit(WorkerLost(self._number, str(error)))
        self._is_lost = True

    def _look(self) -> None:
        self._report_ended()
        while self._inbox:
            self._inbox.popleft()()
        self._report_grant()

    # ---- turns ----------------------------------------------------------------------------------

    def _start(self, request: TurnRequest) -> None:
        turn = Turn(self._number, request, f"{request.trajectory}.{next(self._ids)}")
        running = self._turns.get(request.trajectory)
        if running is not None and running.request == request:
            return  # A repeated message.
        if not self._grants.is_live or request.grant_epoch != self._grants.grant_epoch:
            self._emit(turn.report(TurnEnd.INTERRUPTED))
            return
        try:
            sampling = checked_sampling(request, self._facts)
        except InvalidArgument as error:
            self._emit(turn.report(TurnEnd.REFUSED, str(error)))
            return
        try:
            self._submit(turn, sampling)
        except (InvalidArgument, Unavailable) as error:
            self._emit(turn.report(TurnEnd.FAILED, str(error)))
        else:
            self._turns[request.trajectory] = turn

    def _submit(self, turn: Turn, sampling: Sampling) -> None:
        request = turn.request
        if request.trajectory in self._turns:
            raise InvalidArgument(
                f"trajectory {request.trajectory} already has a turn on worker {self._number}"
            )
        tokens, tokens_max = len(request.prompt) + request.max_new_tokens, self._capacity.tokens_max
        if tokens > tokens_max:
            raise InvalidArgument(
                f"a turn of {tokens} tokens exceeds the {tokens_max} tokens that the worker can "
                "hold"
            )
        ends = () if request.options.ignore_eos else self._facts.eos_tokens
        self._engine.submit(
            turn.request_id,
            list(request.prompt),
            max_new_tokens=request.max_new_tokens,
            on_output=partial(self._on_output, turn),
            sampling=sampling,
            stop_tokens=(*request.stop_tokens, *ends),
        )

    def _on_output(self, turn: Turn, output: Output) -> None:
        """Store the engine's output; called under the lock that a revocation waits for."""
        turn.output = output
        if output.is_finished():
            self._ended.append(turn)

    def _stop(self, trajectory: int) -> None:
        """Report a turn's tokens so far and let the engine drop it; later output is ignored."""
        turn = self._turns.pop(trajectory, None)
        if turn is None:
            return
        self._engine.cancel(turn.request_id)
        self._emit(turn.report(TurnEnd.INTERRUPTED))

    def _stop_all(self) -> None:
        for trajectory in list(self._turns):
            self._stop(trajectory)

    def _report_ended(self) -> None:
        ended, self._ended = self._ended, []
        for turn in ended:
            if turn.is_over:
                continue
            self._turns.pop(turn.request.trajectory, None)
            self._emit(turn.report(*self._how_ended(turn), ends=self._facts.eos_tokens))

    def _how_ended(self, turn: Turn) -> tuple[TurnEnd, str | None]:
        output = turn.output
        if output is None or output.status == RequestStatus.FINISHED:
            return TurnEnd.FINISHED, None
        # A stopped engine, or a device that stopped lending, is not a failure of the turn.
        is_fault = output.failure is not None and not isinstance(output.failure, Unavailable)
        if is_fault and not self._engine.is_stopping:
            return TurnEnd.FAILED, output.error
        return TurnEnd.INTERRUPTED, None

    def _flush(self) -> None:
        self._flushed_ms = self._now_ms()
        for turn in self._turns.values():
            if turn.has_news:
                self._emit(turn.report())

    # ---- the capacity grant ---------------------------------------------------------------------

    def _begin(self) -> None:
        self._is_granted = True

    def _end(self) -> None:
        self._is_granted = False
        self._close_grant()

    def _close_grant(self) -> None:
        self._stop_all()
        if self._grants.is_live:
            self._emit(self._grants.close(now_ms=self._now_ms()))

    def _report_grant(self) -> None:
        """Shrink the grant to the remaining loan, or end it, or renew it."""
        if self._capacity.is_shut_out and self._grants.is_live:
            self._close_grant()
        if self._grants.has_run_out(now_ms=self._now_ms()):
            self._close_grant()  # The loop was frozen; the scheduler ignores this epoch's outputs.
        left = self._capacity.squeezed()
        if left is not None:
            self._is_short = True
        if left == 0:
            self._close_grant()
        elif left is not None and self._grants.is_live and left != self._grants.kv_tokens:
            self._emit(self._grants.resize(left, now_ms=self._now_ms()))
        renewed = self._grants.renew(now_ms=self._now_ms())
        if renewed is not None:
            self._emit(renewed)

    def _open_or_regrow(self) -> None:
        if self._is_short:
            if not self._capacity.has_regrown():
                return
            self._is_short = False
        elif self._grants.is_live:
            return
        size, now_ms = self._capacity.tokens_max, self._now_ms()
        if size == 0:
            return
        grants = self._grants
        change = grants.resize if grants.is_live else grants.open
        self._emit(change(size, now_ms=now_ms))

    # ---- weights --------------------------------------------------------------------------------

    def _committed(self, committed: Committed, *, on_done: OnCommitted | None) -> None:
        self._emit(
            VersionCommitted(
                worker=self._number,
                version=committed.version,
                is_match=committed.is_match,
                pause_ms=committed.pause_ms,
            )
        )
        if committed.is_quarantined:
            self._close_grant()
        if on_done is not None:
            on_done(committed)

    def _begin_scrub(self, scrub: Scrub, on_scrubbed: Callable[[Scrub], None]) -> None:
        self._scrub, self._on_scrubbed = scrub, on_scrubbed

    # ---- small things ---------------------------------------------------------------------------

    def _emit(self, event: WorkerEvent) -> None:
        if not self._is_lost:
            self._on_event(event)

    def _now_ms(self) -> float:
        return self._clock.now_ns() / NS_PER_MS
