"""What threads of workers say to the one task that steps the core."""

import asyncio
import threading

from rose.scheduler.worker import WorkerEvent, WorkerLost


class Inbox:
    """Keeps events of workers in order. Nobody who says something ever waits.

    When more events wait than may, a worker of which one comes is taken as lost: what it says from
    then on is dropped, until it is let in again. Nothing is lost by that but time, as its turns go
    on elsewhere at the last token that was heard; and an engine's thread never waits for us.

    Args:
        loop: of the task that takes.
        events_max: events that may wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, events_max: int) -> None:
        self._loop = loop
        self._events_max = events_max
        self._woken = asyncio.Event()
        # Guards all below.
        self._lock = threading.Lock()
        self._events: list[WorkerEvent] = []
        self._shut_out: set[int] = set()
        self._is_closed = False

    def hear(self, event: WorkerEvent) -> None:
        """Keep what a worker says, from any thread; after `close` it is dropped."""
        with self._lock:
            if self._is_closed or event.worker in self._shut_out:
                return
            if len(self._events) >= self._events_max:
                self._shut_out.add(event.worker)
                event = WorkerLost(event.worker, f"more than {self._events_max} events waited")
            self._events.append(event)
            if len(self._events) == 1:
                try:
                    self._loop.call_soon_threadsafe(self._woken.set)
                except RuntimeError:
                    self._is_closed = True  # The loop has ended without a word.

    # ---- the loop's thread ----------------------------------------------------------------------

    def let_in(self, worker: int) -> None:
        """Take what a worker says again: it joins anew."""
        with self._lock:
            self._shut_out.discard(worker)

    async def wait(self, seconds: float) -> None:
        """Wait until something is there, or so long."""
        alarm = self._loop.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()

    def take(self) -> list[WorkerEvent]:
        """Take all that is there."""
        with self._lock:
            events, self._events = self._events, []
            self._woken.clear()
            return events

    def wake(self) -> None:
        """End a wait."""
        self._woken.set()

    def close(self) -> None:
        """End a wait, and drop what is said from now on."""
        with self._lock:
            self._is_closed = True
        self.wake()
