"""A longer wire: a TCP proxy that delays every byte in both directions.

It is a separate process, `python -m bench.delay_proxy`, so that the product contains no artificial
delays. Its buffers are large enough not to limit the rate. `splice` moves bytes from a socket into
a pipe and from there into the other socket without a copy. One thread handles all connections.
"""

import argparse
import fcntl
import os
import select
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
_READ_BYTES: Final = 1 << 20
_READY: Final = "ready"
_READY_S: Final = 20.0
_CONNECT_S: Final = 10.0
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
# Passes over all connections are at least this share of the delay apart, so that a pass moves many
# packets. This time is added to the delay.
_PASSES: Final = 10
_PASS_NS_MAX: Final = 500_000
# Size of a pipe: the largest that any user may set. A pipe has a slot per packet, not per byte.
_PIPE_BYTES: Final = 1 << 20
_PIPES_MAX: Final = 64
_SPLICE: Final = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


@dataclass(slots=True)
class DelayLine:
    """Counts delayed bytes: they leave in order, and not before their time.

    The bytes themselves are stored elsewhere. This class has no thread and no clock; callers pass
    the time.

    Args:
        delay_ns: time from arrival to departure.
        room_bytes: largest number of bytes in the line.
    """

    delay_ns: int
    room_bytes: int
    held_bytes: int = 0
    _marks: deque[tuple[int, int]] = field(default_factory=deque)  # departure in ns, and bytes

    @property
    def room(self) -> int:
        """Return how many bytes may be added."""
        return self.room_bytes - self.held_bytes

    def put(self, nbytes: int, now_ns: int) -> None:
        """Add bytes."""
        check(0 < nbytes <= self.room, f"{nbytes} bytes do not fit into {self.room} free bytes")
        self._marks.append((now_ns + self.delay_ns, nbytes))
        self.held_bytes += nbytes

    def due_in_ns(self, now_ns: int) -> int | None:
        """Return the time until the next departure, at most 0 if it is due; None if the line is
        empty.
        """
        return self._marks[0][0] - now_ns if self._marks else None

    def due_bytes(self, now_ns: int) -> int:
        """Return the number of bytes that are due."""
        nbytes = 0
        for due_ns, count in self._marks:
            if due_ns > now_ns:
                break
            nbytes += count
        return nbytes

    def take(self, nbytes: int, now_ns: int) -> None:
        """Remove bytes that are due."""
        self.held_bytes -= nbytes
        while nbytes > 0:
            check(bool(self._marks), "more bytes left than entered")
            due_ns, count = self._marks.popleft()
            check(due_ns <= now_ns, "bytes left too early")
            if count > nbytes:
                self._marks.appendleft((due_ns, count - nbytes))
            nbytes -= count


class Pipes:
    """Bytes of a stream between two sockets, in as many consecutive pipes as needed."""

    def __init__(self) -> None:
        self._used: deque[tuple[int, int]] = deque()  # write end and read end of each pipe
        self._held: deque[int] = deque()  # bytes in each pipe
        self._spare: list[tuple[int, int]] = []

    def fill(self, source: socket.socket, most: int) -> int | None:
        """Read bytes from a nonblocking socket; None without bytes or room."""
        if not self._used:
            self._add()
        while True:
            try:
                got = os.splice(source.fileno(), self._used[-1][0], most, flags=_SPLICE)
            except BlockingIOError:
                # Is the socket empty, or the pipe full?
                if len(self._used) == _PIPES_MAX or not _has_bytes(source):
                    return None
                if self._held[-1] > 0:
                    self._add()
                continue
            self._held[-1] += got
            return got

    def drain(self, target: socket.socket, most: int) -> int:
        """Write at least one and at most `most` bytes to a nonblocking socket.

        Raises:
            BlockingIOError: the socket accepts none.
        """
        nbytes = min(most, self._held[0])
        sent = os.splice(self._used[0][1], target.fileno(), nbytes, flags=_SPLICE)
        self._held[0] -= sent
        if self._held[0] == 0:
            self._held.popleft()
            self._spare.append(self._used.popleft())
        return sent

    def close(self) -> None:
        for pipe in (*self._used, *self._spare):
            for end in pipe:
                os.close(end)

    def _add(self) -> None:
        if not self._spare:
            out, into = os.pipe()
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._spare.append((into, out))
        self._used.append(self._spare.pop())
        self._held.append(0)


def _has_bytes(one: socket.socket) -> bool:
    try:
        return bool(one.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


class Carrier:
    """One direction of a connection, from one socket to the other."""

    def __init__(self, here: socket.socket, there: socket.socket, line: DelayLine) -> None:
        self.here = here
        self.there = there
        self._line = line
        self._pipes = Pipes()
        self._ends_ns: int | None = None  # the end of the stream is delayed like bytes
        self.is_stuck = False  # the other socket accepts no bytes now
        self.is_over = False

    @property
    def may_read(self) -> bool:
        """True if there is room for more bytes."""
        return self._ends_ns is None and self._line.room > 0

    def wake_in_ns(self, now_ns: int) -> int | None:
        """Return the time until its next write; None if it waits for a socket event."""
        if self.is_over or self.is_stuck:
            return None
        due_in_ns = self._line.due_in_ns(now_ns)
        if due_in_ns is None and self._ends_ns is not None:
            return self._ends_ns - now_ns
        return due_in_ns

    def read(self, now_ns: int) -> None:
        """Read the available bytes."""
        while self.may_read:
            try:
                got = self._pipes.fill(self.here, min(_READ_BYTES, self._line.room))
            except OSError:
                got = 0  # a broken connection ends here; earlier bytes still arrive
            if got is None:
                return
            if got == 0:
                self._ends_ns = now_ns + self._line.delay_ns
                return
            self._line.put(got, now_ns)

    def write(self, now_ns: int) -> None:
        """Write the bytes that are due."""
        self.is_stuck = False
        try:
            while (due := self._line.due_bytes(now_ns)) > 0:
                self._line.take(self._pipes.drain(self.there, due), now_ns)
            is_empty = self._line.held_bytes == 0
            if is_empty and self._ends_ns is not None and self._ends_ns <= now_ns:
                self.is_over = True
                self.there.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            self.is_stuck = True
        except OSError:
            self._break_off()

    def close(self) -> None:
        self._pipes.close()

    def _break_off(self) -> None:
        """Report to the sending peer that nobody reads."""
        self.is_over = True
        self._ends_ns = 0
        with suppress(OSError):
            self.here.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True)
class Settings:
    """Configuration of a proxy.

    Args:
        listen: address to listen on.
        to: address to connect to, at the same port; if it is local it must differ from `listen`.
        ports: ports of both addresses.
        delay_ms: delay of each direction.
        room_bytes: buffer of each direction of a connection.
    """

    listen: str
    to: str
    ports: tuple[int, ...]
    delay_ms: float
    room_bytes: int


def room_for(bits_per_s: float, delay_ms: float) -> int:
    """Return a buffer that does not limit a rate: twice the bytes in flight, and a few reads."""
    return int(2 * bits_per_s / 8 * delay_ms / 1e3) + 8 * _READ_BYTES


class Proxy:
    """All connections of a proxy, in one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listeners = {
            socket.create_server((settings.listen, port)): port for port in settings.ports
        }
        self._pairs: list[tuple[Carrier, Carrier]] = []
        self._pass_ns = min(int(settings.delay_ms * NS_PER_MS) // _PASSES, _PASS_NS_MAX)

    def run(self) -> None:
        """Carry connections until the process is killed."""
        print(_READY, flush=True)
        while True:
            began_ns = time.monotonic_ns()
            self._turn(began_ns)
            rest_ns = began_ns + self._pass_ns - time.monotonic_ns()
            if rest_ns > 0:
                time.sleep(rest_ns / NS_PER_S)

    def _turn(self, now_ns: int) -> None:
        carriers = [one for pair in self._pairs for one in pair]
        waits = [wait for one in carriers if (wait := one.wake_in_ns(now_ns)) is not None]
        came, _, _ = select.select(
            [*self._listeners, *(one.here for one in carriers if one.may_read)],
            [one.there for one in carriers if one.is_stuck],
            [],
            max(min(waits), 0) / NS_PER_S if waits else None,
        )
        now_ns = time.monotonic_ns()
        ready = set(came)
        for listener in ready & self._listeners.keys():
            self._accept(listener)
        for one in carriers:
            if one.here in ready:
                one.read(now_ns)
            if not one.is_over:
                one.write(now_ns)
        self._drop_over()

    def _accept(self, listener: socket.socket) -> None:
        here, _ = listener.accept()
        try:
            there = socket.create_connection(
                (self._settings.to, self._listeners[listener]), _CONNECT_S
            )
        except OSError:
            here.close()
            return
        delay_ns, room_bytes = int(self._settings.delay_ms * NS_PER_MS), self._settings.room_bytes
        for one in (here, there):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append(
            (
                Carrier(here, there, DelayLine(delay_ns, room_bytes)),
                Carrier(there, here, DelayLine(delay_ns, room_bytes)),
            )
        )

    def _drop_over(self) -> None:
        for pair in [pair for pair in self._pairs if all(one.is_over for one in pair)]:
            self._pairs.remove(pair)
            for one in pair:
                one.close()
                one.here.close()


@contextmanager
def delay_proxy(settings: Settings, *, within: Sequence[str] = ()) -> Iterator[None]:
    """Run a proxy during the body, and end it in any case.

    Args:
        settings: configuration of the proxy.
        within: command line in front of the proxy's, such as that of a namespace.

    Raises:
        Unavailable: the proxy does not start.
    """
    command = [*within, sys.executable, "-m", "bench.delay_proxy", *_arguments(settings)]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(_READY_S, process.kill)  # ends the wait for the proxy's first line
    watchdog.start()
    try:
        said = process.stdout.readline().strip() if process.stdout is not None else ""
        watchdog.cancel()
        if said != _READY:
            raise Unavailable(
                f"the delay proxy at {settings.listen} did not start within {_READY_S:g} s"
            )
        yield
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate(timeout=_READY_S)


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
        raise InvalidArgument(
            "--delay-ms must be at least 0 and --room-bytes at least 1, got "
            f"{options.delay_ms:g} and {options.room_bytes}"
        )
    ports = tuple(int(port) for port in options.ports.split(","))
    return Settings(options.listen, options.to, ports, options.delay_ms, options.room_bytes)


if __name__ == "__main__":
    Proxy(parse(sys.argv[1:])).run()
