"""What threads of workers and coroutines of callers say to the one task that owns the core."""

import asyncio
import threading
from typing import Generic, TypeVar

from rose.scheduler.worker import WorkerEvent, WorkerLost

C = TypeVar("C")


class Inbox(Generic[C]):
    """Keeps what was said in order. Nobody who says something ever waits.

    When more events wait than may, a worker of which one comes is taken as lost: what it says from
    then on is dropped, until it is let in again. Nothing is lost by that but time, as its turns go
    on elsewhere at the last token that was heard; and an engine's thread never waits for us.

    Args:
        loop: of the task that takes.
        events_max: events of workers that may wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, events_max: int) -> None:
        self._loop = loop
        self._events_max = events_max
        self._woken = asyncio.Event()
        # Guards all below.
        self._lock = threading.Lock()
        self._items: list[C | WorkerEvent] = []
        self._events = 0
        self._shut_out: set[int] = set()
        self._is_signalled = False
        self._is_closed = False

    # ---- any thread -----------------------------------------------------------------------------

    def hear(self, event: WorkerEvent) -> None:
        """Keep what a worker says; after `close` it is dropped."""
        with self._lock:
            if self._is_closed or event.worker in self._shut_out:
                return
            if self._events >= self._events_max:
                self._shut_out.add(event.worker)
                event = WorkerLost(event.worker, f"more than {self._events_max} events waited")
            self._events += 1
            self._put(event)

    def let_in(self, worker: int) -> None:
        """Take what a worker says again: it joins anew."""
        with self._lock:
            self._shut_out.discard(worker)

    def _put(self, item: C | WorkerEvent) -> None:
        self._items.append(item)
        if not self._is_signalled:
            self._is_signalled = True
            try:
                self._loop.call_soon_threadsafe(self._woken.set)
            except RuntimeError:
                self._is_closed = True  # The loop has ended without a word.

    # ---- the loop's thread ----------------------------------------------------------------------

    def tell(self, command: C) -> None:
        """Keep what a caller wants; it must not be closed."""
        with self._lock:
            self._put(command)

    async def wait(self, seconds: float) -> None:
        """Wait until something is there, or so long."""
        alarm = self._loop.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()

    def take(self) -> list[C | WorkerEvent]:
        """Take all that is there."""
        with self._lock:
            items, self._items = self._items, []
            self._events = 0
            self._is_signalled = False
            self._woken.clear()
            return items

    def wake(self) -> None:
        """End a wait."""
        self._woken.set()

    def close(self) -> None:
        """Drop what is said from now on."""
        with self._lock:
            self._is_closed = True
