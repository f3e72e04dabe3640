"""A shaped link: bytes cross it, it counts them, it keeps its rate, and nothing of it stays."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench import netns
from bench.netns import Link, inside, leftovers, shaped_link
from rose.errors import Unavailable
from tests.links import needs_links

WAIT_S = 200.0
MBIT = 1e6


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    needs_links()
    with shaped_link(200 * MBIT) as made:
        yield made


def send_across(link: Link, nbytes: int) -> None:
    """Send from the near end to the far one, and return when all has arrived."""
    with inside(link.near.namespace):
        listener = socket.create_server((link.near.address, 0))
    with inside(link.far.namespace):
        reader = socket.create_connection((link.near.address, listener.getsockname()[1]), WAIT_S)
    with listener, reader:
        writer, _ = listener.accept()
        thread = threading.Thread(target=writer.sendall, args=(bytes(nbytes),))
        thread.start()
        got = 0
        while got < nbytes:
            got += len(reader.recv(1 << 20))
        thread.join()
        writer.close()


def test_a_link_counts_what_crosses_it(link: Link) -> None:
    before = link.near.sent_bytes()
    send_across(link, 1_000_000)
    crossed = link.near.sent_bytes() - before
    assert 1_000_000 <= crossed <= 1_100_000  # its headers, and nothing twice


def test_a_link_keeps_its_rate(link: Link) -> None:
    nbytes = 4_000_000
    began_ns = time.monotonic_ns()
    send_across(link, nbytes)
    took_s = (time.monotonic_ns() - began_ns) / 1e9
    # A lower bound alone: what the bucket holds may go at once, the rest takes its time.
    assert took_s >= (nbytes - (1 << 20)) * 8 / (200 * MBIT)


def test_a_program_runs_at_an_end_of_a_link(link: Link) -> None:
    program = f"import socket; print(socket.create_server(('{link.far.address}', 0)) is not None)"
    command = link.far.command(sys.executable, "-c", program)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(("delay_ms", "loss"), [(40.0, 0.0), (0.0, 0.05), (40.0, 0.05)])
def test_a_long_wire_delays_every_byte_and_loses_none_of_a_connection(
    link: Link, delay_ms: float, loss: float
) -> None:
    with shaped_link(1e9, delay_ms=delay_ms, loss=loss) as long:
        began_ns = time.monotonic_ns()
        send_across(long, 300_000)
        # Lower bounds alone: the connection is made in one round trip, then the last byte crosses.
        assert time.monotonic_ns() - began_ns >= 3 * delay_ms * 1e6
        # What was lost was sent again.
        assert (long.near.sent_bytes() > 1.02 * 300_000 * 1.04) == (loss > 0)


def test_a_thread_comes_back_from_a_namespace(link: Link) -> None:
    def where() -> int:
        return Path("/proc/thread-self/ns/net").stat().st_ino

    own = where()
    with suppress(ZeroDivisionError), inside(link.far.namespace):
        assert where() != own
        raise ZeroDivisionError
    assert where() == own


def test_nothing_of_a_link_stays_when_its_body_fails(link: Link) -> None:
    before = set(leftovers())
    with suppress(ZeroDivisionError), shaped_link(MBIT):
        assert len(set(leftovers()) - before) == 2
        raise ZeroDivisionError
    assert set(leftovers()) == before


def test_nothing_stays_of_a_link_that_cannot_be_made(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(leftovers())
    with pytest.raises(Unavailable, match="tc"), shaped_link(-1):
        pytest.fail("there is no such rate")
    assert set(leftovers()) == before


def test_without_its_tools_a_link_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns.os, "geteuid", lambda: 0)
    monkeypatch.setattr(netns.shutil, "which", lambda _: None)
    with pytest.raises(Unavailable, match="ip and tc"), shaped_link(MBIT):
        pytest.fail("there is nothing to make it with")


def test_who_is_not_root_gets_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="root"), shaped_link(MBIT):
        pytest.fail("namespaces are root's")
