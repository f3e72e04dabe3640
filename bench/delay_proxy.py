"""A longer wire: a TCP proxy that holds every byte for a while, in both directions.

It is a process of its own, `python -m bench.delay_proxy`, so that nothing in the product waits on
purpose. It has room for what is on its way and does not limit the rate.
"""

import argparse
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rose.errors import InvalidArgument, Unavailable, check

_ROOT: Final = Path(__file__).resolve().parents[1]
_READ_BYTES: Final = 256 << 10
_READY: Final = "ready"
_READY_S: Final = 20.0
_CONNECT_S: Final = 10.0
NS_PER_MS: Final = 1_000_000


@dataclass(slots=True)
class DelayLine:
    """What is on its way: bytes leave it in the order they came in, and never before their time.

    No thread, no clock: its users bring both.

    Args:
        delay_ns: from coming in to leaving.
        room_bytes: it takes nothing more while it holds so many.
    """

    delay_ns: int
    room_bytes: int
    held_bytes: int = 0
    _held: deque[tuple[int, bytes]] = field(default_factory=deque)

    @property
    def has_room(self) -> bool:
        """Whether `put` may be called."""
        return self.held_bytes < self.room_bytes

    def put(self, content: bytes, now_ns: int) -> None:
        """Take bytes in; none, b"", is the end of the stream, which travels like bytes do."""
        check(self.has_room, "a full line takes nothing")
        self._held.append((now_ns + self.delay_ns, content))
        self.held_bytes += len(content)

    def due_in_ns(self, now_ns: int) -> int | None:
        """Return how long until the next bytes leave, 0 or below when they may; None when empty."""
        return self._held[0][0] - now_ns if self._held else None

    def take(self, now_ns: int) -> bytes:
        """Return the next bytes, whose time has come."""
        due_ns, content = self._held.popleft()
        check(due_ns <= now_ns, "bytes leave a line in their time")
        self.held_bytes -= len(content)
        return content


class Carrier:
    """One direction of one connection: a thread that reads, and one that writes."""

    def __init__(self, here: socket.socket, there: socket.socket, line: DelayLine) -> None:
        self._here = here
        self._there = there
        self._line = line
        self._changed = threading.Condition()  # guards the line and what follows
        self._is_broken = False
        self._threads = (
            threading.Thread(target=self._read, name="delay-read", daemon=True),
            threading.Thread(target=self._write, name="delay-write", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        content = b"-"
        while content:
            try:
                content = self._here.recv(_READ_BYTES)
            except OSError:
                content = b""  # a connection that breaks ends here; the bytes before it arrive
            now_ns = time.monotonic_ns()
            with self._changed:
                self._changed.wait_for(lambda: self._line.has_room or self._is_broken)
                if self._is_broken:
                    return
                # What waited for room is not delayed twice.
                self._line.put(content, now_ns)
                self._changed.notify_all()

    def _write(self) -> None:
        content = b"-"
        while content:
            content = self._next()
            try:
                if content:
                    self._there.sendall(content)
            except OSError:
                self._break_off()
                return
        with suppress(OSError):
            self._there.shutdown(socket.SHUT_WR)

    def _next(self) -> bytes:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._line.due_in_ns(0) is not None)
                now_ns = time.monotonic_ns()
                wait_ns = self._line.due_in_ns(now_ns) or 0
                if wait_ns <= 0:
                    content = self._line.take(now_ns)
                    self._changed.notify_all()
                    return content
            time.sleep(wait_ns / 1e9)

    def _break_off(self) -> None:
        """Let the peer that still sends know that nobody reads."""
        with self._changed:
            self._is_broken = True
            self._changed.notify_all()
        with suppress(OSError):
            self._here.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a proxy does.

    Args:
        listen: the address it listens on.
        to: the address it connects to, at the same port; an own address must differ from `listen`.
        ports: of both.
        delay_ms: of each direction.
        room_bytes: of each direction of a connection.
    """

    listen: str
    to: str
    ports: tuple[int, ...]
    delay_ms: float
    room_bytes: int


def room_for(bits_per_s: float, delay_ms: float) -> int:
    """Return the room that lets a rate pass: what is on its way, twice, and a few reads."""
    return int(2 * bits_per_s / 8 * delay_ms / 1e3) + 8 * _READ_BYTES


def serve(settings: Settings) -> None:
    """Carry connections until the process is ended."""
    with selectors.DefaultSelector() as selector:
        for port in settings.ports:
            listener = socket.create_server((settings.listen, port))
            selector.register(listener, selectors.EVENT_READ, port)
        print(_READY, flush=True)
        while True:
            for key, _ in selector.select():
                listener = key.fileobj  # type: ignore[assignment]
                connection, _ = listener.accept()
                threading.Thread(
                    target=_carry, args=(connection, key.data, settings), daemon=True
                ).start()


def _carry(here: socket.socket, port: int, settings: Settings) -> None:
    try:
        there = socket.create_connection((settings.to, port), _CONNECT_S)
    except OSError:
        here.close()
        return
    there.settimeout(None)
    carriers = []
    with here, there:
        for one, other in ((here, there), (there, here)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = DelayLine(int(settings.delay_ms * NS_PER_MS), settings.room_bytes)
            carriers.append(Carrier(one, other, line))
        for carrier in carriers:
            carrier.join()


@contextmanager
def delay_proxy(settings: Settings, *, within: Sequence[str] = ()) -> Iterator[None]:
    """Run a proxy beside the body, and end it however the body ends.

    Args:
        settings: of the proxy.
        within: a command line that goes before its own, such as that of a namespace.

    Raises:
        Unavailable: it does not come up.
    """
    command = [*within, sys.executable, "-m", "bench.delay_proxy", *_arguments(settings)]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(_READY_S, process.kill)  # ends the wait for its first line
    watchdog.start()
    try:
        said = process.stdout.readline().strip() if process.stdout is not None else ""
        watchdog.cancel()
        if said != _READY:
            raise Unavailable(f"the delay proxy at {settings.listen} did not come up")
        yield
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def _arguments(settings: Settings) -> list[str]:
    return [
        *("--listen", settings.listen, "--to", settings.to),
        *("--ports", ",".join(map(str, settings.ports))),
        *("--delay-ms", str(settings.delay_ms), "--room-bytes", str(settings.room_bytes)),
    ]


def parse(arguments: Sequence[str]) -> Settings:
    parser = argparse.ArgumentParser(prog="bench.delay_proxy", description=__doc__)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--ports", required=True)
    parser.add_argument("--delay-ms", required=True, type=float)
    parser.add_argument("--room-bytes", required=True, type=int)
    options = parser.parse_args(arguments)
    if options.delay_ms < 0 or options.room_bytes < 1:
        raise InvalidArgument("a delay is 0 or more, and there must be room for a byte")
    ports = tuple(int(port) for port in options.ports.split(","))
    return Settings(options.listen, options.to, ports, options.delay_ms, options.room_bytes)


if __name__ == "__main__":
    serve(parse(sys.argv[1:]))
