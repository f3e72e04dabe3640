"""The engine's state travels to the streams of its front processes, and lost datagrams heal."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rose.engines.vllm.event_stream import EngineEvents
from rose.engines.vllm.telling import Telling

STATUS = {"kind": "borrowed", "model": "m"}
LONG_S = 30.0


class Engine:
    """An engine whose state a test sets."""

    def __init__(self, folder: Path) -> None:
        self.grant = {"grant_epoch": 1, "kv_tokens": 640, "ttl_ms": 4000.0}
        self.version = {"version": 0, "is_match": True, "pause_ms": 0.0}
        self.wait: dict[str, Any] = {"reason": None}
        self.end: str | None = None
        self.telling = Telling(folder, self.state, on_failure=lambda error: None)

    def state(self) -> dict[str, Any]:
        return {
            "grant": self.grant,
            "version": self.version,
            "wait": self.wait,
            "kv_tokens": 640,
            "instance": "a1",
            "is_whole": self.grant["kv_tokens"] == 640,
        }

    def revoke(self) -> None:
        self.grant = {**self.grant, "kv_tokens": 0}

    def events(self, folder: Path) -> EngineEvents:
        return EngineEvents(folder, STATUS, lambda: self.end)


async def next_event(stream: AsyncIterator[str]) -> tuple[str, dict[str, Any]]:
    """Return the next event that is no ping."""
    while True:
        text = await asyncio.wait_for(stream.__anext__(), LONG_S)
        if not text.startswith(":"):
            word, data, *rest = text.split("\n")
            assert rest == ["", ""]
            return word.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def first_events(stream: AsyncIterator[str]) -> list[str]:
    return [(await next_event(stream))[0] for _ in range(3)]


async def opened(folder: Path) -> tuple[Engine, AsyncIterator[str]]:
    """Return an engine, and a stream whose first events were read."""
    engine = Engine(folder)
    stream = engine.events(folder).stream()
    engine.telling.tell()
    assert await first_events(stream) == ["status", "grant", "version"]
    return engine, stream


def test_a_stream_begins_with_the_state_and_goes_on_with_changes(tmp_path: Path) -> None:
    async def run() -> None:
        engine = Engine(tmp_path)
        events = engine.events(tmp_path)
        stream = events.stream()
        engine.telling.tell()
        word, status = await next_event(stream)
        facts = {**STATUS, "kv_tokens": 640, "instance": "a1", "version": 0}
        assert (word, status) == ("status", facts)
        assert await next_event(stream) == ("grant", engine.grant)
        assert await next_event(stream) == ("version", engine.version)
        engine.revoke()
        engine.telling.tell()
        assert await next_event(stream) == ("grant", engine.grant)
        assert not events.is_whole
        engine.wait = {"reason": "serving_busy", "waited_s": 1.5, "remedy": None}
        engine.telling.tell()
        assert await next_event(stream) == ("wait", engine.wait)
        late = events.stream()
        assert [(await next_event(late))[0] for _ in range(4)][-1] == "wait"
        engine.wait = {"reason": None}
        engine.telling.tell()
        assert await next_event(stream) == ("wait", {"reason": None})

    asyncio.run(run())


def test_repetitions_renew_the_grant_and_heal_a_lost_datagram(tmp_path: Path) -> None:
    async def run() -> None:
        engine, stream = await opened(tmp_path)
        engine.revoke()  # And its datagram is lost.
        engine.telling.start()
        assert await next_event(stream) == ("grant", engine.grant)
        assert await next_event(stream) == ("grant", engine.grant)
        engine.telling.close()

    asyncio.run(run())


def test_a_slow_client_gets_the_newest_state_with_a_higher_epoch(tmp_path: Path) -> None:
    async def run() -> None:
        engine, stream = await opened(tmp_path)
        engine.revoke()
        engine.telling.tell()
        engine.grant = {**engine.grant, "grant_epoch": 2, "kv_tokens": 640}
        engine.telling.tell()
        assert await next_event(stream) == ("grant", engine.grant)

    asyncio.run(run())


def test_an_engine_tells_every_front_process_and_no_ended_one_stops_it(tmp_path: Path) -> None:
    async def run() -> None:
        engine = Engine(tmp_path)
        (tmp_path / "1.sock").touch()  # A front process that has ended.
        (tmp_path / "other").touch()
        events = engine.events(tmp_path)
        engine.telling.tell()
        assert await first_events(events.stream()) == ["status", "grant", "version"]

    asyncio.run(run())


def test_a_stream_ends_with_the_reason(tmp_path: Path) -> None:
    async def run() -> None:
        engine = Engine(tmp_path)
        stream = engine.events(tmp_path).stream()
        engine.telling.tell()
        assert await first_events(stream) == ["status", "grant", "version"]
        engine.end = "the engine of this server has ended"
        assert await next_event(stream) == ("lost", {"reason": engine.end})
        assert [one async for one in stream] == []

    asyncio.run(run())


def test_an_engine_without_its_folder_goes_on(tmp_path: Path) -> None:
    Engine(tmp_path / "away").telling.tell()
