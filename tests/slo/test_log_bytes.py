"""Logs as bytes: the core and an independent writer say the same, and old logs stay readable."""

import json
import tracemalloc
from pathlib import Path

import pytest

from rose._core import CertificateLog, ManualClock, ServingState
from rose.slo.log_file import read_log
from rose.slo.verify import verify_log
from tests.known_model import known_model
from tests.reference.log_bytes import MS, NO_SLOT, LogBytes
from tests.waiting import wait_for

VECTORS = Path(__file__).parents[1] / "vectors" / "certificate_logs.json"


def records_of(path: Path) -> list[bytes]:
    """Return header and records, without what seals them."""
    content = path.read_bytes()
    return [content[at : at + 124] for at in range(0, len(content), 128)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def core(tmp_path, clock) -> CertificateLog:
    return CertificateLog(
        str(tmp_path / "core"),
        ttft_ms=500,
        tpot_ms=50,
        epsilon=0.05,
        signal_ms=1,
        blocking_ms=100,
        heartbeat_ttl_ms=100,
        max_segments=4,
        slabs=10,
        partitions=2,
        blocks_per_slab=8,
        block_tokens=16,
        max_request_tokens=256,
        max_batch_tokens=128,
        burst_requests=1,
        revoke_ms=50,
        slowdown=0.25,
        without=0b10,
        clock=clock,
    )


def test_the_core_writes_what_the_protocol_says(tmp_path, core, clock):
    state = ServingState(core)
    model = known_model(
        prior_ms=(5, 0, 0, 0.1, 0),
        epsilon=0.05,
        adaptation=0.01,
        window=64,
    )
    began_ns = clock.now_ns()
    slots = [state.arrived(tokens=100 + n, prefilled=n == 2) for n in range(710)]
    clock.advance(10 * MS)
    state.emitted([slots[0], slots[9], slots[703]])
    state.emitted(slots[-3:])
    state.finished(slots[9])
    features = {"decode_sequences": 2.0, "context_tokens": 64.0, "prefill_tokens": 7.0}
    forecast = model.observe(6.0, **features)
    waits = {"blocked_ms": 1.5, "lent_ms": 2.5, "began_ns": began_ns + 4 * MS}
    core.append_step(forecast, actual_ms=6.0, **features, **waits)
    core.close()

    ours = LogBytes(slowdown=0.25, without=0b10, started_ns=began_ns)
    ours.now_ns = began_ns
    for slot in range(710):
        ours.arrived(slot, tokens=100 + slot, prefilled=int(slot == 2))
    ours.wait(10)
    ours.tokens(0, 9, 703)
    ours.tokens(707, 708, 709, first_slot=704)
    ours.finished(9)
    bounds = {"predicted_ms": forecast.predicted_ms, "upper_ms": forecast.upper_ms}
    ours.step(6.0, **(bounds | features | waits))
    ours.save(tmp_path / "ours")
    theirs, ours_bytes = records_of(tmp_path / "core"), records_of(tmp_path / "ours")
    assert theirs[0] == ours_bytes[0]
    assert theirs[2:] == ours_bytes[2:]  # a START has the time of the wall
    assert verify_log(tmp_path / "core").violations == []


def test_a_request_that_found_no_slot_is_one_in_the_log_too(tmp_path, core):
    state = ServingState(core)
    while state.arrived(tokens=1) != NO_SLOT:
        pass
    assert state.finished(NO_SLOT)
    core.close()
    answer = verify_log(tmp_path / "core")
    assert answer.violations == []
    _, records = read_log(tmp_path / "core")
    assert [one.fields["slot"] for one in records if one.kind == "ARRIVED"][-1] == NO_SLOT


def test_a_log_that_was_written_once_stays_verifiable(tmp_path):
    rows = json.loads(VECTORS.read_text(encoding="utf-8"))["version 7"]
    path = tmp_path / "log"
    path.write_bytes(b"".join(bytes.fromhex(row) for row in rows))
    answer = verify_log(path)
    assert (answer.violations, answer.is_complete) == ([], True)
    assert (answer.records, answer.granted) == (len(rows) - 1, 6)
    header, _ = read_log(path)
    assert (header["version"], header["ttft_ms"], header["revoke_ms"]) == (7, 500.0, 50.0)
    assert header["slowdown"] == 2.0


def test_a_log_is_not_read_into_memory_to_be_verified(tmp_path, core, clock):
    state = ServingState(core)
    path = tmp_path / "core"
    for count in range(1, 8_001):
        slot = state.arrived(tokens=1)
        clock.advance(MS)
        state.finished(slot)
        if count % 1_000 == 0:  # A slow disk must not lose records of a loop that never waits.
            wait_for(lambda least=count * 2 * 128: path.stat().st_size > least)
    core.close()
    tracemalloc.start()
    verification = verify_log(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert verification.violations == []
    assert verification.records > 16_000
    assert peak_bytes < path.stat().st_size // 3
