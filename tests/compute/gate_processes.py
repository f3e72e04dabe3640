"""The other end of a gate as a real process: a borrower in a loop, a serving to be killed."""

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from rose._core import HostGate

HANG_S = 60.0


@contextmanager
def process_of(body: Callable[..., None], *args: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run `body(conn, *args)`; in the end the process is gone."""
    context = multiprocessing.get_context("forkserver")
    mine, theirs = context.Pipe()
    process = context.Process(target=body, args=(theirs, *args))
    process.start()
    theirs.close()
    try:
        yield process, mine
    finally:
        process.kill()
        process.join()
        mine.close()


def send_fd(conn: Connection, fd: int) -> None:
    """Give the other end a descriptor; it tells its number first."""
    assert conn.poll(HANG_S)
    send_handle(conn, fd, conn.recv())


def receive_fd(conn: Connection) -> int:
    """Take a descriptor from the other end."""
    conn.send(os.getpid())
    return recv_handle(conn)


def borrow(conn: Connection) -> None:
    """Pass the gate until told to end; count on a page that nobody else writes."""
    gate = HostGate.attach(receive_fd(conn))
    with mmap.mmap(receive_fd(conn), mmap.PAGESIZE) as page:
        count = 0
        while not conn.poll(0):
            gate.begin_step()
            for _ in range(8):
                if (told := gate.pass_(timeout_ms=2).name) == "PASSED":
                    count += 1
                page[0:8] = count.to_bytes(8, "little")
                if told == "SHUT_DOWN":
                    time.sleep(0.001)
            gate.end_step()
    conn.recv()
    conn.send(count)
