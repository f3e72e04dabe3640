"""Passes events of worker threads to the task that steps the core."""

import asyncio
import threading

from rose.scheduler.worker import WorkerEvent, WorkerLost


class Inbox:
    """Keeps worker events in order. Senders never wait.

    When too many events wait, a worker that sends another one counts as lost: its events are
    dropped until it registers again. That costs only time, because its turns resume elsewhere at
    their last known tokens. In return, no thread of an engine ever waits for the scheduler.

    Args:
        loop: event loop of the consuming task.
        events_max: largest number of waiting events.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, events_max: int) -> None:
        self._loop = loop
        self._events_max = events_max
        self._woken = asyncio.Event()
        # Guards all fields below.
        self._lock = threading.Lock()
        self._events: list[WorkerEvent] = []
        self._shut_out: set[int] = set()
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
            if len(self._events) == 1:
                try:
                    self._loop.call_soon_threadsafe(self._woken.set)
                except RuntimeError:
                    self._is_closed = True  # The loop has ended without a close.

    # ---- the loop's thread ----------------------------------------------------------------------

    def let_in(self, worker: int) -> None:
        """Accept a worker's events again, when it registers anew."""
        with self._lock:
            self._shut_out.discard(worker)

    async def wait(self, seconds: float) -> None:
        """Wait for an event, for at most `seconds`."""
        alarm = self._loop.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()

    def take(self) -> list[WorkerEvent]:
        """Remove and return all events."""
        with self._lock:
            events, self._events = self._events, []
            self._woken.clear()
            return events

    def wake(self) -> None:
        """Wake the task that is in `wait`."""
        self._woken.set()

    def close(self) -> None:
        """Wake the task that is in `wait`, and drop later events."""
        with self._lock:
            self._is_closed = True
        self.wake()
