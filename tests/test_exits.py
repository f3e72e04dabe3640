"""Programs that end while daemon threads are in calls of rose, or while rose is open."""

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.executor.conftest import CALM
from tests.executor.serving_program import listening
from tests.waiting import LONG_S

KINDS: Final = (
    "lend",
    "gate",
    "parked",
    "ensure",
    "steps",
    "borrow",
    "pack",
    "update",
    "receive",
)
MANY: Final = 45  # times the number of kinds: 405 exits


def end(kind: str, folder: Path) -> None:
    """Run one program to its end, which must be a normal one."""
    program = [sys.executable, "-m", "tests.exit_program", kind, str(folder)]
    done = subprocess.run(program, capture_output=True, timeout=LONG_S, check=False)
    assert (done.returncode, done.stderr) == (0, b""), kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_ends_in_peace_beside_its_daemon_threads(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        if kind == "borrow":
            stack.enter_context(listening(tmp_path / "socket", **CALM))
        end(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hundreds_of_programs_end_in_peace_on_a_busy_machine(tmp_path: Path) -> None:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        with listening(tmp_path / "socket", **CALM):
            for _ in range(MANY):
                for kind in KINDS:
                    end(kind, tmp_path)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


# ---- uncaught exceptions

OPEN: Final = """
import sys, threading
import numpy as np
import rose
publisher = rose.publish({"w": np.zeros(1 << 16, np.float32)})
receiver = rose.receive({"w": np.ones(1 << 16, np.float32)}, publisher.address,
                        token=publisher.token)
receiver.wait(100)
receiver.commit()
threading.Event().wait(0.2)  # so that the receiver's next request waits at the publisher
print("ready", flush=True)
"""


def last_words(end_: str, *, number: int | None = None) -> tuple[int, list[str]]:
    """Run a program that ends beside an open publisher and receiver; return status and stderr."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", OPEN + end_]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            assert running.stdout.readline() == "ready\n"
            if number is not None:
                running.send_signal(number)
            _, stderr = running.communicate(timeout=LONG_S)
            return running.returncode, stderr.splitlines()
        finally:
            running.kill()


def test_an_uncaught_exception_beside_open_weights_is_all_that_is_printed() -> None:
    status, stderr = last_words("raise ValueError('mine')")
    assert (status, stderr[0], stderr[-1]) == (
        1,
        "Traceback (most recent call last):",
        "ValueError: mine",
    )
    assert stderr.count(stderr[0]) == 1


def test_a_status_beside_open_weights_is_kept_and_nothing_is_printed() -> None:
    assert last_words("sys.exit(3)") == (3, [])
    assert last_words("receiver.wait(1000)", number=signal.SIGTERM) == (-signal.SIGTERM, [])


def test_an_interrupt_beside_open_weights_is_all_that_is_printed() -> None:
    status, stderr = last_words("receiver.wait(1000)", number=signal.SIGINT)
    assert (status, stderr[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    assert stderr.count("Traceback (most recent call last):") == 1
