"""One scheduler's connection to a worker: the commands, the turns, and the worker's events."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import grpc

from rose.clock import Clock
from rose.errors import CorruptData, DeadlineExceeded, InternalError, RoseError, sentence
from rose.scheduler.outbox import Nothing, Outbox
from rose.scheduler.wire import Greeting, Heartbeat, StopTurn, decode_command, encode
from rose.scheduler.worker import (
    TurnOutput,
    TurnRequest,
    Worker,
    WorkerEvent,
    WorkerLost,
    failed_output,
)
from rose.thread import Thread
from rose.units import NS_PER_S

HEARTBEAT_S: Final = 1.0  # period of heartbeats while there are no events
SILENCE_MAX_S: Final = 5.0  # silence after which the scheduler counts as gone
# Maximum events in the send queue. One more event ends the stream, because the engine's thread
# never waits for a scheduler.
EVENTS_MAX: Final = 4096


class Session:
    """The commands and events of one stream.

    Threads: this object's own thread runs the commands; gRPC's thread sends by iterating `frames`;
    any thread may add an event, which never waits.

    1. `_live` holds the turns that this session started and that have not ended.
    2. Only the command thread starts turns. When the commands end, for any reason, it stops all
       turns and starts no more.
    """

    def __init__(
        self,
        worker: Worker,
        requests: Iterable[bytes],
        *,
        on_event: Callable[[WorkerEvent], None],
        cancel: Callable[[], None],
        clock: Clock,
    ) -> None:
        """Prepare a session.

        Args:
            worker: runs the turns.
            requests: incoming frames; the end of the stream, or an error of gRPC, ends the
                session.
            on_event: called with the failure of a turn that the worker refused to queue.
            cancel: ends the stream at once; any thread may call it.
            clock: time source.
        """
        self._worker = worker
        self._requests = requests
        self._on_event = on_event
        self._cancel = cancel
        self._clock = clock
        self._outbox: Outbox[WorkerEvent] = Outbox(items_max=EVENTS_MAX)
        self._received_ns = clock.now_ns()
        self._fault: RoseError | None = None
        self._drained = threading.Condition()  # guards _live and _is_over
        self._live: set[tuple[int, int]] = set()
        self._is_over = False
        self._thread = Thread(self._obey, name="rose-session", on_failure=self._broke)

    def start(self) -> None:
        """Start the command thread."""
        self._thread.start()

    def send(self, event: WorkerEvent) -> None:
        """Queue an event for the stream; if the queue is full, end the stream. Never waits."""
        if isinstance(event, TurnOutput) and event.end is not None:
            with self._drained:
                self._live.discard((event.trajectory, event.turn))
                self._drained.notify_all()
        elif isinstance(event, WorkerLost):
            with self._drained:
                self._live.clear()
                self._drained.notify_all()
        if not self._outbox.put(event) and not self._outbox.is_closed:
            self._cancel()

    @property
    def is_over(self) -> bool:
        """True if the scheduler is gone; some turns of the session may not have ended yet."""
        with self._drained:
            return self._is_over

    def wait_drained(self, *, wait_s: float) -> bool:
        """Wait until the session is over and every turn has ended; False on a time-out."""
        with self._drained:
            return self._drained.wait_for(lambda: self._is_over and not self._live, timeout=wait_s)

    def end(self) -> None:
        """Send the queued events, then end the stream."""
        self._outbox.close()

    def join(self, *, wait_s: float) -> bool:
        """Wait for the command thread; False if it still runs."""
        self._thread.join(timeout=wait_s)
        return not self._thread.is_alive()

    # ---- gRPC's sending thread ------------------------------------------------------------------

    def frames(self) -> Iterator[bytes]:
        """Yield encoded events for the scheduler, until the session ends.

        Raises:
            CorruptData: a command could not be decoded.
            InternalError: rose failed in the command thread.
            DeadlineExceeded: the scheduler was silent for too long.
            InvalidArgument: an event cannot be encoded.
        """
        yield encode(Greeting(self._worker.number, self._worker.kind))
        while True:
            event = self._outbox.take(wait_s=HEARTBEAT_S)
            self._check_scheduler_lives()
            if event is Nothing.MORE:
                break
            yield encode(Heartbeat() if isinstance(event, Nothing) else event)
        if self._fault is not None:
            raise self._fault

    def _check_scheduler_lives(self) -> None:
        silence_ns = self._clock.now_ns() - self._received_ns
        if silence_ns > SILENCE_MAX_S * NS_PER_S:
            raise DeadlineExceeded(f"the scheduler sent nothing for {SILENCE_MAX_S} s")

    # ---- the command thread ---------------------------------------------------------------------

    def _obey(self) -> None:
        try:
            for frame in self._requests:
                self._received_ns = self._clock.now_ns()
                self._obey_one(frame)
        except CorruptData as error:
            self._fault = error
        except grpc.RpcError:
            pass  # The scheduler is gone: treat it like the end of the stream.
        self._wind_up()

    def _broke(self, failure: BaseException) -> None:
        self._fault = InternalError(f"the worker's session failed: {sentence(failure)}")
        self._wind_up()

    def _wind_up(self) -> None:
        self._outbox.close(is_emptied=True)
        self._stop_turns()

    def _stop_turns(self) -> None:
        with self._drained:
            left = sorted({trajectory for trajectory, _ in self._live})
        for trajectory in left:
            self._worker.stop_turn(trajectory)
        with self._drained:
            self._is_over = True
            self._drained.notify_all()

    def _obey_one(self, frame: bytes) -> None:
        match decode_command(frame):
            case TurnRequest() as request:
                self._start_turn(request)
            case StopTurn(trajectory=trajectory):
                self._worker.stop_turn(trajectory)

    def _start_turn(self, request: TurnRequest) -> None:
        with self._drained:
            self._live.add((request.trajectory, request.turn))
        try:
            self._worker.start_turn(request)
        except RoseError as error:
            self._on_event(failed_output(request, self._worker.number, str(error)))
