"""The stream `/rose/events` of an engine under rose: grants, versions and waits, as they change."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import msgspec

from rose.engines.http.link import Link
from rose.errors import RoseError, sentence

# An event that was missed might be a revocation. Engines send a line each second.
SILENCE_S: Final = 3.0
BROKEN_S: Final = 2.0
_RETRY_S: Final = 0.2
_EVENT: Final = b"event:"
_DATA: Final = b"data:"


class EventStream:
    """Follows an engine's events, over any number of connections.

    Args:
        link: connection to the engine.
        on_event: called with name and data of each event.
        on_silence: called with the reason once nothing was received for `SILENCE_S`, or for
            `BROKEN_S` after a connection broke. The next events begin with the present state.
    """

    def __init__(
        self,
        link: Link,
        on_event: Callable[[str, dict[str, Any]], None],
        on_silence: Callable[[str], None],
    ) -> None:
        self._link = link
        self._on_event = on_event
        self._on_silence = on_silence
        self._alarm: asyncio.TimerHandle | None = None

    async def follow(self) -> None:
        """Read events until the task is cancelled."""
        reason = "it ended the stream of its events"
        try:
            self._expect(SILENCE_S, "it sent no event")
            while True:
                try:
                    await self._read()
                except (aiohttp.ClientError, OSError, asyncio.TimeoutError, RoseError) as error:
                    reason = f"the stream of its events broke: {sentence(error)}"
                self._expect(BROKEN_S, reason)
                await asyncio.sleep(_RETRY_S)
        finally:
            self._forget()

    async def _read(self) -> None:
        async with self._link.get("/rose/events", silence_s=SILENCE_S) as answer:
            if answer.status != 200:
                return
            name = ""
            while True:
                line = await answer.content.readline()
                if not line:
                    return
                self._expect(SILENCE_S, "it sent no event")
                if line.startswith(_EVENT):
                    name = line[len(_EVENT) :].strip().decode(errors="replace")
                elif line.startswith(_DATA):
                    self._pass_on(name, line[len(_DATA) :])

    def _pass_on(self, name: str, data: bytes) -> None:
        try:
            found = msgspec.json.decode(data)
        except msgspec.DecodeError:
            return  # A later rose may send other data; what is needed comes again.
        if isinstance(found, dict):
            self._on_event(name, found)

    def _expect(self, seconds: float, reason: str) -> None:
        """Set the time limit for the next line, unless a broken stream's one is running."""
        loop = asyncio.get_running_loop()
        is_broken = seconds == BROKEN_S
        if is_broken and self._alarm is not None and self._alarm.when() <= loop.time() + seconds:
            return
        self._forget()
        self._alarm = loop.call_later(seconds, self._on_silence, f"{reason} for {seconds} s")

    def _forget(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
