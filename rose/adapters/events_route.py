"""The routes `/rose/events` and `/rose/status` of an engine: its state, and a stream of changes."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from rose.scheduler.worker import GrantChanged, VersionCommitted, WorkerEvent

_PING_S: Final = 1.0
_PING: Final = ": ping\n\n"
_QUIET: Final[Mapping[str, Any]] = {"reason": None}


class EngineState:
    """The newest state of an engine, and the streams of its changes.

    A stream begins with the present state. If changes come faster than a client reads, it gets the
    newest state only; a revocation in between shows as a higher `grant_epoch`. Any thread may
    report; the streams belong to the event loop's thread.

    Args:
        status: data of the event `status`, without its version.
    """

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()  # Guards the state and the counts.
        self._state: dict[str, Mapping[str, Any]] = {
            "status": {**status, "version": 0},
            "grant": {"grant_epoch": 0, "kv_tokens": 0, "ttl_ms": 0.0},
            "version": {"version": 0, "is_match": True, "pause_ms": 0.0},
            "wait": _QUIET,
        }
        self._reports: Counter[str] = Counter()
        self._streams: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._end: str | None = None

    def state(self) -> dict[str, Mapping[str, Any]]:
        """Return the present state: the newest data of each event."""
        with self._lock:
            return dict(self._state)

    # ---- any thread -----------------------------------------------------------------------------

    def receive(self, event: WorkerEvent) -> None:
        """Report a worker's event; turns and losses are not reported here."""
        match event:
            case GrantChanged():
                data = {"grant_epoch": event.grant_epoch, "kv_tokens": event.kv_tokens}
                self.report("grant", {**data, "ttl_ms": event.ttl_ms})
            case VersionCommitted():
                data = {"version": event.version, "is_match": event.is_match}
                self.report("version", {**data, "pause_ms": event.pause_ms})

    def report(self, word: str, data: Mapping[str, Any]) -> None:
        """Report new data of an event: status, grant, version or wait."""
        with self._lock:
            self._state[word] = data
            if word == "version":
                self._state["status"] = {**self._state["status"], "version": data["version"]}
            self._reports[word] += 1
            streams = tuple(self._streams)
        self._wake(streams)

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Add fields to the event `status`."""
        self.report("status", {**self.state()["status"], **facts})

    def close(self, reason: str) -> None:
        """End all streams, with the event `lost`."""
        with self._lock:
            self._end = reason
            streams = tuple(self._streams)
        self._wake(streams)

    @staticmethod
    def _wake(streams: tuple[tuple[asyncio.AbstractEventLoop, asyncio.Event], ...]) -> None:
        for loop, news in streams:
            with suppress(RuntimeError):  # The loop of a stream may be closed already.
                loop.call_soon_threadsafe(news.set)

    # ---- the event loop -------------------------------------------------------------------------

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events until the engine ends."""
        news = asyncio.Event()
        stream = asyncio.get_running_loop(), news
        with self._lock:
            self._streams.add(stream)
            state, sent = dict(self._state), self._reports.copy()
        try:
            for word, data in state.items():
                if data != _QUIET:
                    yield _event(word, data)
            while self._end is None:
                try:
                    await asyncio.wait_for(news.wait(), _PING_S)
                except asyncio.TimeoutError:
                    yield _PING
                news.clear()
                with self._lock:
                    state, reports = dict(self._state), self._reports.copy()
                for word, data in state.items():
                    if reports[word] != sent[word]:
                        yield _event(word, data)
                sent = reports
            yield _event("lost", {"reason": self._end})
        finally:
            with self._lock:
                self._streams.discard(stream)


def _event(word: str, data: Mapping[str, Any]) -> str:
    return f"event: {word}\ndata: {json.dumps(data)}\n\n"


def add_engine(app: FastAPI, events: EngineState) -> None:
    """Add the routes of an engine."""

    @app.get("/rose/status")
    async def status() -> dict[str, Any]:
        """Return the state of the engine: status, grant, version and wait."""
        return {"engine": events.state()}

    @app.get("/rose/events", response_class=StreamingResponse)
    async def stream() -> StreamingResponse:
        """Stream the state of the engine as it changes, with a comment line each second."""
        return StreamingResponse(events.stream(), media_type="text/event-stream")
