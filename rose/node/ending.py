"""When a process ends: its stdin was closed, it got SIGTERM, or a part of it said so."""

import os
import selectors
import signal
from contextlib import suppress
from types import FrameType
from typing import Final

from typing_extensions import Self

_PIECE_BYTES: Final = 4096


class Ending:
    """Waits for the first reason to end.

    Whoever started the process holds its stdin open and writes nothing; when that closes, by
    intent or by death, nobody wants the process any more. To be entered in the main thread, which
    alone may say what a signal does.
    """

    def __init__(self, stdin: int) -> None:
        """Watch the descriptor `stdin`, which stays the caller's."""
        self._stdin = stdin
        self._reasons: list[str] = []
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def __enter__(self) -> Self:
        """Heed SIGTERM from now on."""
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Let SIGTERM do what it did before."""
        signal.signal(signal.SIGTERM, self._before)
        os.close(self._read)
        os.close(self._write)

    def tell(self, reason: str) -> None:
        """Let `wait` return with a reason; from any thread, while it is entered."""
        self._reasons.append(reason)
        with suppress(BlockingIOError):  # The pipe is full of reasons; one is enough.
            os.write(self._write, b".")

    def wait(self) -> str:
        """Return the first reason there is."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            try:
                selector.register(self._stdin, selectors.EVENT_READ)
            except PermissionError:
                return "stdin is a file, which is as good as closed"
            while not self._reasons:
                for key, _ in selector.select():
                    if key.fd == self._stdin and not os.read(self._stdin, _PIECE_BYTES):
                        return "stdin was closed"
        return self._reasons[0]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.tell(f"got {signal.Signals(number).name}")
