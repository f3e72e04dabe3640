"""The streams of `/rose/events`: an engine's state, and its changes as server-sent events."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

PING_S: Final = 1.0  # interval of comments while nothing changes
_PING: Final = ": ping\n\n"
QUIET: Final[Mapping[str, Any]] = {"reason": None}  # data of `wait` while nothing waits


class EventStreams:
    """The newest state of an engine, and the streams of its changes.

    A stream begins with the present state. If changes come faster than a client reads, it gets the
    newest state only; a revocation in between shows as a higher `grant_epoch`. Any thread may
    report; a stream belongs to the event loop that reads it.

    Args:
        state: data of each event by its word: status, grant, version and wait.
    """

    def __init__(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        self._lock = threading.Lock()  # Guards the state and the counts.
        self._state = dict(state)
        self._reports: Counter[str] = Counter()
        self._streams: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._end: str | None = None

    def state(self) -> dict[str, Mapping[str, Any]]:
        """Return the present state: the newest data of each event."""
        with self._lock:
            return dict(self._state)

    def store(self, word: str, data: Mapping[str, Any]) -> None:
        """Keep data of an event for new streams; running ones do not get it."""
        with self._lock:
            self._state[word] = data

    def report(self, word: str, data: Mapping[str, Any]) -> None:
        """Report new data of an event, or the same data again."""
        with self._lock:
            self._state[word] = data
            self._reports[word] += 1
        self._wake()

    def close(self, reason: str) -> None:
        """End all streams, with the event `lost`."""
        self._end = reason
        self._wake()

    def end(self) -> str | None:
        """Return why streams end; None while they go on."""
        return self._end

    def _wake(self) -> None:
        with self._lock:
            streams = tuple(self._streams)
        for loop, news in streams:
            with suppress(RuntimeError):  # The loop of a stream may be closed already.
                loop.call_soon_threadsafe(news.set)

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events until the engine ends."""
        news = asyncio.Event()
        stream = asyncio.get_running_loop(), news
        with self._lock:
            self._streams.add(stream)
            state, sent = dict(self._state), self._reports.copy()
        try:
            for word, data in state.items():
                if data != QUIET:
                    yield _event(word, data)
            while (reason := self.end()) is None:
                with self._lock:
                    state, reports = dict(self._state), self._reports.copy()
                for word, data in state.items():
                    if reports[word] != sent[word]:
                        yield _event(word, data)
                sent = reports
                try:
                    await asyncio.wait_for(news.wait(), PING_S)
                except asyncio.TimeoutError:
                    yield _PING
                news.clear()
            yield _event("lost", {"reason": reason})
        finally:
            with self._lock:
                self._streams.discard(stream)


def _event(word: str, data: Mapping[str, Any]) -> str:
    return f"event: {word}\ndata: {json.dumps(data)}\n\n"
