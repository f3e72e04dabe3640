"""The delay proxy: nothing is lost, nothing overtakes, and nothing is early."""

import contextlib
import hashlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.delay_proxy import NS_PER_MS, DelayLine, Settings, delay_proxy, room_for
from rose.errors import InternalError, Unavailable

HERE = "127.0.0.1"
PROXY = "127.0.0.2"
WAIT_S = 200.0

Steps = list[tuple[int, int]]
steps = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 50)), max_size=30)


@given(steps, st.integers(0, 100), st.integers(8, 40), st.integers(1, 8))
def test_a_line_gives_every_byte_in_order_and_none_early(
    steps: Steps, delay_ns: int, room_bytes: int, most: int
) -> None:
    line = DelayLine(delay_ns, room_bytes)
    now_ns = 0
    came: list[int] = []  # of each byte, when
    left = 0

    def let_go() -> None:
        nonlocal left
        while (due := line.due_bytes(now_ns)) > 0:
            nbytes = min(due, most)  # a socket takes what it has room for
            line.take(nbytes, now_ns)
            left += nbytes
        assert all(at + delay_ns <= now_ns for at in came[:left])
        assert all(at + delay_ns > now_ns for at in came[left:])
        in_ns = line.due_in_ns(now_ns)
        assert in_ns == (came[left] + delay_ns - now_ns if left < len(came) else None)

    for nbytes, pause_ns in steps:
        now_ns += pause_ns
        let_go()
        while line.room < nbytes:
            now_ns += 1
            let_go()
        line.put(nbytes, now_ns)
        came += [now_ns] * nbytes
        assert line.held_bytes == len(came) - left <= room_bytes
    now_ns += delay_ns
    let_go()
    assert left == len(came)
    assert line.held_bytes == 0


def test_bytes_do_not_leave_a_line_early() -> None:
    line = DelayLine(10, 100)
    line.put(1, 5)
    with pytest.raises(InternalError):
        line.take(1, 14)


def test_a_line_takes_no_more_than_it_has_room_for() -> None:
    line = DelayLine(10, 100)
    line.put(60, 5)
    with pytest.raises(InternalError):
        line.put(41, 5)


def test_there_is_room_for_what_is_on_its_way() -> None:
    assert room_for(10e9, 20.0) >= 10e9 / 8 * 0.020


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HERE, 0)) as made:
        made.settimeout(WAIT_S)
        yield made


def settings_for(listener: socket.socket, *, delay_ms: float) -> Settings:
    port = listener.getsockname()[1]
    return Settings(PROXY, HERE, (port,), delay_ms, room_for(1e9, delay_ms))


@contextlib.contextmanager
def connection_through(
    listener: socket.socket, *, delay_ms: float
) -> Iterator[tuple[socket.socket, socket.socket]]:
    with delay_proxy(settings_for(listener, delay_ms=delay_ms)):
        port = listener.getsockname()[1]
        with socket.create_connection((PROXY, port), WAIT_S) as near:
            far, _ = listener.accept()
            far.settimeout(WAIT_S)
            with far:
                yield near, far


def read_all(one: socket.socket) -> str:
    digest = hashlib.sha256()
    while content := one.recv(1 << 20):
        digest.update(content)
    return digest.hexdigest()


def test_both_directions_arrive_as_they_were_sent(listener: socket.socket) -> None:
    rng = np.random.default_rng(8)
    sent = {name: rng.bytes(3_000_017) for name in ("near", "far")}
    arrived: dict[str, str] = {}
    with connection_through(listener, delay_ms=2.0) as (near, far):

        def send(one: socket.socket, content: bytes) -> None:
            one.sendall(content)
            one.shutdown(socket.SHUT_WR)  # the end of a stream travels too

        threads = [
            threading.Thread(target=send, args=(near, sent["near"])),
            threading.Thread(target=send, args=(far, sent["far"])),
            threading.Thread(target=lambda: arrived.update(far=read_all(near))),
        ]
        for thread in threads:
            thread.start()
        arrived["near"] = read_all(far)
        for thread in threads:
            thread.join()
    assert arrived == {name: hashlib.sha256(content).hexdigest() for name, content in sent.items()}


def test_the_end_of_one_direction_arrives_while_the_other_is_open(
    listener: socket.socket,
) -> None:
    with connection_through(listener, delay_ms=1.0) as (near, far):
        near.sendall(b"?")
        near.shutdown(socket.SHUT_WR)
        assert read_all(far) == hashlib.sha256(b"?").hexdigest()
        far.sendall(b"!")
        assert near.recv(1) == b"!"


def test_a_byte_takes_at_least_the_delay_each_way(listener: socket.socket) -> None:
    delay_ms = 40.0
    with connection_through(listener, delay_ms=delay_ms) as (near, far):
        for one, other in ((near, far), (far, near)):
            began_ns = time.monotonic_ns()
            one.sendall(b"!")
            assert other.recv(1) == b"!"
            # A lower bound alone: it holds on a machine of any speed.
            assert time.monotonic_ns() - began_ns >= delay_ms * NS_PER_MS


def test_a_sender_learns_that_its_reader_has_gone(listener: socket.socket) -> None:
    with connection_through(listener, delay_ms=0.1) as (near, far):
        far.close()

        def send_on() -> None:
            for _ in range(100_000):
                near.sendall(bytes(1 << 16))

        with pytest.raises(OSError, match=r"(?i)reset|pipe"):
            send_on()


def test_a_proxy_that_cannot_listen_is_unavailable(listener: socket.socket) -> None:
    settings = settings_for(listener, delay_ms=1.0)
    with (
        socket.create_server((PROXY, listener.getsockname()[1])),
        pytest.raises(Unavailable, match="did not start within"),
        delay_proxy(settings),
    ):
        pytest.fail("it cannot listen where another does")


def test_a_proxy_ends_when_its_body_fails(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with (
        contextlib.suppress(ZeroDivisionError),
        delay_proxy(settings_for(listener, delay_ms=1.0)),
    ):
        raise ZeroDivisionError
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((PROXY, port), WAIT_S)


def test_a_proxy_refuses_a_delay_below_zero(repo: Path) -> None:
    command = [sys.executable, "-m", "bench.delay_proxy", "--listen", PROXY, "--to", HERE]
    command += ["--ports", "1", "--delay-ms", "-1", "--room-bytes", "1"]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "--delay-ms must be at least 0 and --room-bytes at least 1, got -1 and 1" in done.stderr
