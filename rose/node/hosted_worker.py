"""One worker for one engine after the other: its owner never sees that an engine is gone."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from rose.errors import RoseError
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    Worker,
    WorkerEvent,
    WorkerKind,
    WorkerLost,
    failed_output,
)


@dataclass(slots=True)
class _Running:
    request: TurnRequest
    tokens: int = 0


class HostedWorker:
    """Passes turns to the present engine's worker, and that worker's events on.

    When the engine is lost, its turns end as INTERRUPTED and its grant ends. The epochs of the next
    engine's grants continue from those of the last one. Any thread may call all methods.

    Args:
        number: number of the worker in events.
        kind: dedicated or borrowed.
        on_event: called with the events, in the engine's thread; must be quick and must not raise.
    """

    def __init__(
        self, number: int, kind: WorkerKind, on_event: Callable[[WorkerEvent], None]
    ) -> None:
        self.number = number
        self.kind = kind
        self._on_event = on_event
        self._lock = threading.RLock()  # Guards all fields below, and the order of events.
        self._engine: Worker | None = None
        self._before = 0  # epochs of earlier engines
        self._epoch = 0
        self._turns: dict[int, _Running] = {}
        self._lost: Callable[[str], None] = lambda _: None

    def use(self, engine: Worker) -> None:
        """Pass further turns to another engine's worker."""
        with self._lock:
            self._engine = engine

    def events_of(self, on_lost: Callable[[str], None]) -> Callable[[WorkerEvent], None]:
        """Return the callback for the events of the next engine.

        Args:
            on_lost: called with the reason when the engine is lost.
        """
        with self._lock:
            self._before, self._lost = self._epoch, on_lost
            return self._receive

    def start_turn(self, request: TurnRequest) -> None:
        """Start a turn on the present engine; without one, the turn is interrupted at once."""
        with self._lock:
            epoch = request.grant_epoch - self._before
            if self._engine is None or epoch < 1:
                self._interrupt(_Running(request))
                return
            self._turns[request.trajectory] = _Running(request)
            try:
                self._engine.start_turn(replace(request, grant_epoch=epoch))
            except RoseError as error:
                self._turns.pop(request.trajectory, None)
                self._on_event(failed_output(request, self.number, str(error)))

    def stop_turn(self, trajectory: int) -> None:
        """Recall a trajectory's turn, if it runs here."""
        with self._lock:
            if self._engine is not None:
                self._engine.stop_turn(trajectory)

    def _receive(self, event: WorkerEvent) -> None:
        with self._lock:
            match event:
                case TurnOutput():
                    self._report(event)
                case GrantChanged():
                    self._epoch = event.grant_epoch + self._before
                    self._on_event(replace(event, grant_epoch=self._epoch))
                case WorkerLost():
                    self._lose(event.reason)
                case _:
                    self._on_event(event)

    def _report(self, output: TurnOutput) -> None:
        running = self._turns.get(output.trajectory)
        epoch = output.grant_epoch + self._before
        if running is not None and running.request.turn == output.turn:
            running.tokens += len(output.tokens)
            if output.end is not None:
                del self._turns[output.trajectory]
        self._on_event(replace(output, grant_epoch=epoch))

    def _lose(self, reason: str) -> None:
        self._engine = None
        turns, self._turns = self._turns, {}
        for running in turns.values():
            self._interrupt(running)
        self._on_event(GrantChanged(self.number, self._epoch, 0, ttl_ms=0.0))
        self._lost(reason)

    def _interrupt(self, running: _Running) -> None:
        request = running.request
        where = request.trajectory, request.turn, request.grant_epoch
        first = request.first_token + running.tokens
        self._on_event(
            TurnOutput(self.number, *where, first, (), (), (), TurnEnd.INTERRUPTED, None)
        )
