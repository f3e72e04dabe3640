"""Gate, creditor, certificates and log together, checked by the second opinion."""

import threading
import time
from pathlib import Path

import pytest

from rose._core import (
    CertificateLog,
    Creditor,
    HostGate,
    ManualClock,
    QuantumRefusal,
    ServingState,
    Verdict,
)
from rose.errors import InvalidArgument
from rose.slo.verify import verify_log
from tests.known_model import known_model

LONG_MS = 200_000.0  # bounds a hang, no more
MAX_SEGMENTS = 4


class Device:
    """One gate with everything that opens and closes it; virtual time for heartbeats."""

    def __init__(self, path: Path, *, ttft_ms: float = 500, clock: ManualClock | None = None):
        self.path = path
        self.log = CertificateLog(
            str(path),
            ttft_ms=ttft_ms,
            tpot_ms=50,
            epsilon=0.05,
            signal_ms=1,
            blocking_ms=200,
            heartbeat_ttl_ms=100,
            max_segments=MAX_SEGMENTS,
            slabs=1,
            partitions=1,
            blocks_per_slab=1,
            clock=clock,
        )
        self.model = known_model(
            prior_ms=(5, 0, 0, 0.1, 0),
            epsilon=0.05,
            adaptation=0.01,
            window=64,
        )
        self.gate = HostGate(clock=clock)
        self.state = ServingState(self.log, gate=self.gate)
        self.creditor = Creditor(
            self.gate,
            self.state,
            self.model,
            self.log,
            largest_step=(1, 64, 0),
            largest_chunk=(0, 0, 256),
            segment_prior_ms=5,
            segment_share=0.99,
            poll_ms=1,
            retry_ms=1,
            clock=clock,
        )

    def wait_for(self, why: QuantumRefusal) -> None:
        """Return once the creditor, looking now, refuses because of `why`."""
        before = self.creditor.refused(why)
        deadline = time.monotonic() + LONG_MS / 1000
        while self.creditor.refused(why) <= before:
            self.creditor.notify()
            assert time.monotonic() < deadline, self.creditor.last_refusal
            time.sleep(0.001)

    def close(self) -> None:
        self.creditor.stop()
        self.log.close()


def test_an_expected_request_keeps_the_gate_closed_until_it_arrives_or_is_late(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    device = Device(tmp_path / "log", clock=clock)
    device.state.beat()
    device.creditor.start()
    device.gate.begin_step()
    front = HostGate.attach(device.gate.fileno(), clock=clock)

    def expect(within_ms: float) -> None:
        assert device.gate.pass_(timeout_ms=LONG_MS) is Verdict.PASSED
        front.expect_arrival(within_ms=within_ms)
        assert not device.gate.is_open()
        device.gate.leave()
        assert device.gate.pass_(timeout_ms=20) is Verdict.TIMED_OUT
        device.wait_for(QuantumRefusal.SERVING_BUSY)
        assert not device.gate.is_open()

    expect(within_ms=50)
    assert device.state.finished(device.state.arrived(tokens=8))
    expect(within_ms=50)
    clock.advance(50_000_000)
    expect(within_ms=1e6)  # longer than any request may be expected
    clock.advance(1_000_000_000)
    device.state.beat()
    assert device.gate.pass_(timeout_ms=LONG_MS) is Verdict.PASSED
    device.gate.end_step()
    device.close()
    assert verify_log(device.path).violations == []


def test_every_quantum_of_a_busy_device_verifies(tmp_path: Path) -> None:
    device = Device(tmp_path / "log", clock=ManualClock())
    device.state.beat()
    device.creditor.start()
    stop = threading.Event()

    def borrow() -> None:
        while not stop.is_set():
            device.gate.begin_step()
            for _ in range(5):
                device.gate.pass_(timeout_ms=20)
            device.gate.end_step()

    borrower = threading.Thread(target=borrow)
    borrower.start()
    deadline = time.monotonic() + LONG_MS / 1000
    requests = 0
    while requests < 150 or (device.creditor.grants < 150 and time.monotonic() < deadline):
        slot = device.state.arrived(tokens=8)
        assert not device.gate.is_open()
        assert device.gate.wait_parked(timeout_ms=LONG_MS) is not None
        device.state.finished(slot)
        requests += 1
        time.sleep(0.0003 * (requests % 5))
    stop.set()
    borrower.join()
    device.close()
    verification = verify_log(device.path)
    assert verification.violations == []
    assert verification.verified == verification.granted >= 150
    assert verification.kinds["ARRIVED"] == verification.kinds["FINISHED"] == requests


def test_a_creditor_that_is_dropped_stops_by_itself(tmp_path: Path) -> None:
    device = Device(tmp_path / "log")
    device.creditor.start()
    with pytest.raises(InvalidArgument, match="was started already"):
        device.creditor.start()
    assert device.creditor.is_running
    before = set(threading.enumerate())
    del device
    assert set(threading.enumerate()) == before
