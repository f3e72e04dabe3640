"""The gate as Python sees it: two threads, two processes, and the GIL."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from rose._core import CloseReason, HostGate, Verdict
from rose.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[2]
LONG_MS = 200_000.0  # bounds a hang, no more


def open_with(gate: HostGate, segments: int) -> None:
    gate.grant(segments)
    assert gate.open(gate.close_epoch)


@contextmanager
def thread(target) -> Iterator[None]:
    errors: list[BaseException] = []

    def body() -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - handed to the test below
            errors.append(error)

    one = threading.Thread(target=body)
    one.start()
    try:
        yield
    finally:
        one.join()
    if errors:
        raise errors[0]


def test_a_waiting_borrower_lets_other_python_threads_run() -> None:
    gate = HostGate()
    verdicts: list[Verdict] = []
    with thread(lambda: verdicts.append(gate.pass_(timeout_ms=LONG_MS))):
        open_with(gate, 1)  # needs the GIL that the waiting thread must have given up
    assert verdicts == [Verdict.PASSED]


def test_waiting_for_a_segment_lets_the_borrower_end_it() -> None:
    gate = HostGate()
    open_with(gate, 1)
    assert gate.pass_(timeout_ms=1) is Verdict.PASSED
    gate.close(CloseReason.ARRIVAL)
    assert gate.wait_parked(timeout_ms=1) is None
    waited: list[float | None] = []
    with thread(lambda: waited.append(gate.wait_parked(timeout_ms=LONG_MS))):
        gate.leave()
    assert waited[0] is not None
    assert gate.wait_parked(timeout_ms=0) == 0.0


def test_statistics_say_what_happened() -> None:
    gate = HostGate()
    open_with(gate, 5)
    for _ in range(5):
        gate.pass_(timeout_ms=1)
    gate.close(CloseReason.REVOCATION)
    gate.pass_(timeout_ms=1)
    stats = gate.stats()
    assert stats.segments == gate.passed == 5
    assert stats.pauses == 1
    assert stats.caught == 1
    assert 0 < stats.segment_ms_p50 <= stats.segment_ms_p99 <= stats.segment_ms_max
    assert 0 <= stats.pause_ms_p50 <= stats.pause_ms_p99
    assert stats.blocked_ms > 0
    durations = gate.drain_segments_ms()
    assert len(durations) == 5
    assert max(durations) == stats.segment_ms_max
    assert gate.drain_segments_ms() == []


def test_a_descriptor_that_is_no_gate_is_refused(tmp_path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(InvalidArgument, match="not a gate"):
        HostGate.attach(file.fileno())
    with pytest.raises(InvalidArgument, match="not open"):
        HostGate.attach(10_000)
    with pytest.raises(InvalidArgument, match="timeout_ms"):
        HostGate().pass_(timeout_ms=-1)
    with pytest.raises(InvalidArgument, match="within_ms"):
        HostGate().expect_arrival(within_ms=-1)


STOPPED: Final = """
import threading, time
from rose._core import CloseReason, HostGate
gate = HostGate()
gate.grant(1)
assert gate.open(gate.close_epoch)
has_begun = threading.Event()

def segment():
    gate.pass_(timeout_ms=1000)
    has_begun.set()
    for _ in range(20):  # so much of this process's own time
        time.sleep(0.01)
    gate.leave()

one = threading.Thread(target=segment)
one.start()
has_begun.wait()
gate.close(CloseReason.ARRIVAL)
print("waiting", flush=True)
print(gate.wait_parked(timeout_ms=1000) is not None, flush=True)
one.join()
"""


def test_a_wait_for_a_segment_does_not_count_what_the_process_was_stopped_for() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "True\n"
