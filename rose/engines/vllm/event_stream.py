"""The route `/rose/events` of a borrower's front process: the engine's state as a stream."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from rose.engines.event_streams import QUIET, EventStreams
from rose.engines.vllm.telling import SUFFIX

# Longer than any datagram of `Telling`.
_DATAGRAM_BYTES: Final = 1 << 16


class EngineEvents(EventStreams):
    """State and streams of an engine in another process. For one event loop.

    The state is empty until the engine has sent it.

    Args:
        folder: folder in which the engine's `Telling` looks for sockets.
        status: fields of the event `status` that the engine does not send.
        is_over: function that returns why streams must end; None while they go on.
    """

    def __init__(
        self, folder: Path, status: dict[str, Any], is_over: Callable[[], str | None]
    ) -> None:
        """Receive the engine's datagrams from now on, in the running event loop."""
        super().__init__({})
        self._status = status
        self._is_over = is_over
        # False if the engine's grant could grow when the engine looks again.
        self.is_whole = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(folder / f"{os.getpid()}{SUFFIX}"))
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    @override
    def end(self) -> str | None:
        return self._is_over()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._take(json.loads(self._socket.recv(_DATAGRAM_BYTES)))

    def _take(self, told: dict[str, Any]) -> None:
        self.is_whole = told["is_whole"]
        there = self.state()
        status = {**self._status, "kv_tokens": told["kv_tokens"], "instance": told["instance"]}
        status["version"] = told["version"]["version"]
        words = {word: told[word] for word in ("grant", "version", "wait")}
        for word, data in {"status": status, **words}.items():
            is_renewed = told["is_repeated"] and word == "grant"
            is_news = is_renewed or data != there.get(word, QUIET)
            (self.report if is_news else self.store)(word, data)
