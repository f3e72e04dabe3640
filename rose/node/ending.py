"""End a process when its stdin closes, on SIGTERM, or on request of one of its parts."""

import os
import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

from typing_extensions import Self

_PIECE_BYTES: Final = 4096
# Longer lines are cut; no command of rose comes near this length.
_LINE_BYTES_MAX: Final = 64 << 10


class Ending:
    """Waits for the first reason to end the process.

    The parent process holds stdin open, and may write lines to it. When stdin closes, because the
    parent closed it or died, the process must end. Use the context in the main thread: other
    threads may not set signal handlers.
    """

    def __init__(self, stdin: int) -> None:
        """Watch the descriptor `stdin`, which the caller owns."""
        self._stdin = stdin
        self._rest = b""
        self._reasons: list[str] = []
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def __enter__(self) -> Self:
        """Handle SIGTERM from now on."""
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Restore the SIGTERM handler."""
        signal.signal(signal.SIGTERM, self._before)
        os.close(self._read)
        os.close(self._write)

    def report(self, reason: str) -> None:
        """Make `wait` return the first reported reason. Any thread may call."""
        self._reasons.append(reason)
        with suppress(BlockingIOError):  # The pipe is full; one byte is enough.
            os.write(self._write, b".")

    def wait(self, on_line: Callable[[str], None]) -> str:
        """Wait for the first reason and return it; pass each line of stdin to `on_line`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            try:
                selector.register(self._stdin, selectors.EVENT_READ)
            except PermissionError:
                return "stdin is a file and cannot be watched, so it counts as closed"
            while not self._reasons:
                for key, _ in selector.select():
                    if key.fd == self._stdin and not self._read_lines(on_line):
                        return "stdin was closed"
        return self._reasons[0]

    def _read_lines(self, on_line: Callable[[str], None]) -> bool:
        """Read from stdin; False at its end."""
        piece = os.read(self._stdin, _PIECE_BYTES)
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest[:_LINE_BYTES_MAX]
        for line in lines:
            on_line(line.decode(errors="replace"))
        return bool(piece)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.report(f"got {signal.Signals(number).name}")
