"""Sends the state of a borrower's engine to the front processes of its server."""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rose.thread import Thread

EVERY_S: Final = 1.0
"""Interval at which the state is repeated, so that a lost datagram does no harm for long."""
SUFFIX: Final = ".sock"
"""End of the names of the front processes' sockets."""


class Telling:
    """Sends the state to each socket in a folder: after each change, and every `EVERY_S`.

    Front processes make the sockets. A datagram needs neither vLLM's loop nor the end of a step, so
    a revocation is known at once even if a step waits at its gate. Nothing here waits for a
    receiver.

    Args:
        folder: folder of the sockets.
        state: function that returns the state as JSON; any thread calls it.
        on_failure: called if the thread of the repetitions fails.
    """

    def __init__(
        self,
        folder: Path,
        state: Callable[[], dict[str, Any]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Prepare the thread."""
        self._folder = folder
        self._state = state
        self._lock = threading.Lock()  # Keeps the order: a later datagram has a later state.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._stop = threading.Event()
        self._thread = Thread(self._repeat, name="rose-telling", on_failure=on_failure)

    def start(self) -> None:
        """Start the repetitions."""
        self._thread.start()

    def tell(self, *, is_repeated: bool = False) -> None:
        """Send the state now.

        Args:
            is_repeated: True for a repetition that shows that the engine lives.
        """
        with self._lock:
            datagram = json.dumps({**self._state(), "is_repeated": is_repeated}).encode()
            with suppress(OSError):  # The server is ending.
                for one in self._folder.iterdir():
                    if one.suffix == SUFFIX:
                        self._send(datagram, one)

    def _send(self, datagram: bytes, receiver: Path) -> None:
        with suppress(OSError):  # The receiver has ended, or is behind: the next state heals that.
            self._socket.sendto(datagram, str(receiver))

    def _repeat(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.tell(is_repeated=True)

    def close(self) -> None:
        """Stop and join the thread. Idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            self._socket.close()
