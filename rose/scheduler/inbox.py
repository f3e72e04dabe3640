"""Passes events of workers to the event loop that steps the core."""

import asyncio
import threading
from collections.abc import Callable

from rose.scheduler.worker import WorkerEvent, WorkerLost


class Inbox:
    """Keeps worker events in order. Senders never wait.

    When too many events wait, a worker that sends another one counts as lost: its events are
    dropped until it registers again. That costs only time, because its turns resume elsewhere at
    their last known tokens. In return, no thread of an engine ever waits for the scheduler.

    Args:
        on_events: called in the loop's thread, soon after an event was kept, and every `tick_s`
            seconds until `close`.
        tick_s: see `on_events`.
        events_max: largest number of waiting events.
    """

    def __init__(self, on_events: Callable[[], None], *, tick_s: float, events_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._on_events = on_events
        self._tick_s = tick_s
        self._events_max = events_max
        self._alarm = self._loop.call_later(tick_s, self._tick)
        # Guards all fields below.
        self._lock = threading.Lock()
        self._events: list[WorkerEvent] = []
        self._shut_out: set[int] = set()
        self._is_called = False  # a call of `on_events` is due
        self._is_closed = False

    def receive(self, event: WorkerEvent) -> None:
        """Keep a worker's event, or drop it after `close`; any thread may call."""
        with self._lock:
            if self._is_closed or event.worker in self._shut_out:
                return
            if len(self._events) >= self._events_max:
                self._shut_out.add(event.worker)
                why = f"more than {self._events_max} events waited"
                event = WorkerLost(event.worker, why, is_crash=False)
            self._events.append(event)
            if self._is_called:
                return
            self._is_called = True
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._on_events)
                return
            try:
                self._loop.call_soon_threadsafe(self._on_events)
            except RuntimeError:
                self._is_closed = True  # The loop has ended without a close.

    # ---- the loop's thread ----------------------------------------------------------------------

    def let_in(self, worker: int) -> None:
        """Accept a worker's events again, when it registers anew."""
        with self._lock:
            self._shut_out.discard(worker)

    def take(self) -> list[WorkerEvent]:
        """Remove and return all events."""
        with self._lock:
            events, self._events = self._events, []
            self._is_called = False
            return events

    def wake(self) -> None:
        """Call `on_events` soon."""
        with self._lock:
            if not self._is_called:
                self._is_called = True
                self._loop.call_soon(self._on_events)

    def close(self) -> None:
        """Drop later events, and end the calls."""
        self._alarm.cancel()
        with self._lock:
            self._is_closed = True

    def _tick(self) -> None:
        self._alarm = self._loop.call_later(self._tick_s, self._tick)
        self._on_events()
