"""The route `/rose/events` of a borrower's front process: the engine's state as a stream."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rose.engines.vllm.telling import EVERY_S, SUFFIX

# Longer than any datagram of `Telling`.
_DATAGRAM_BYTES: Final = 1 << 16
_WORDS: Final = ("status", "grant", "version", "wait")


class EngineEvents:
    """The newest state of the engine, and the streams of its changes. For one event loop.

    A stream begins with the present state. If changes come faster than a client reads, it gets the
    newest state only; a revocation in between shows as a higher `grant_epoch`.

    Args:
        folder: folder in which the engine's `Telling` looks for sockets.
        status: the event `status` but for what only the engine knows.
        is_over: function that returns why streams must end; None while they go on.
    """

    def __init__(
        self, folder: Path, status: dict[str, Any], is_over: Callable[[], str | None]
    ) -> None:
        """Receive the engine's datagrams from now on, in the running event loop."""
        self._status = status
        self._is_over = is_over
        self._streams: set[asyncio.Event] = set()
        self._repetitions = 0
        # Data of the events by word; empty until the engine has sent its state.
        self.state: dict[str, Any] = {}
        # False if the engine's grant could grow when the engine looks again.
        self.is_whole = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(folder / f"{os.getpid()}{SUFFIX}"))
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._take(json.loads(self._socket.recv(_DATAGRAM_BYTES)))

    def _take(self, told: dict[str, Any]) -> None:
        self._repetitions += told["is_repeated"]
        self.is_whole = told["is_whole"]
        status = {**self._status, "kv_tokens": told["kv_tokens"], "instance": told["instance"]}
        status["version"] = told["version"]["version"]
        self.state = {"status": status, **{word: told[word] for word in _WORDS[1:]}}
        for one in self._streams:
            one.set()

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events until the engine or the server ends."""
        news, sent, repetitions = asyncio.Event(), dict[str, Any](), self._repetitions
        self._streams.add(news)
        try:
            while (reason := self._is_over()) is None:
                is_renewed = repetitions != self._repetitions
                repetitions = self._repetitions
                for word, data in self.state.items():
                    if data != sent.get(word, _QUIET.get(word)) or (is_renewed and word == "grant"):
                        yield _event(word, data)
                sent = self.state
                try:
                    await asyncio.wait_for(news.wait(), EVERY_S)
                except asyncio.TimeoutError:
                    yield ": ping\n\n"
                news.clear()
            yield _event("lost", {"reason": reason})
        finally:
            self._streams.discard(news)


# States that a new stream does not report.
_QUIET: Final = {"wait": {"reason": None}}


def _event(word: str, data: dict[str, Any]) -> str:
    return f"event: {word}\ndata: {json.dumps(data)}\n\n"
