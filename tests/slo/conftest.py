"""A small honest log with every kind of record."""

from pathlib import Path

import pytest

from rose._core import (
    AdmissionTerms,
    CertificateLog,
    Creditor,
    HostGate,
    ManualClock,
    QuantumRefusal,
    ServingState,
    admission_certificate,
)
from tests.known_model import known_model

STEP = {"decode_sequences": 1.0, "context_tokens": 64.0, "prefill_tokens": 0.0}


def write_log(path: Path) -> None:
    """Let a device live for a moment: requests, quanta, slack, a loan, a revocation, the end."""
    clock = ManualClock()
    log = CertificateLog(
        str(path),
        ttft_ms=500,
        tpot_ms=500,
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
        slowdown=2.0,
        clock=clock,
    )
    model = known_model(
        prior_ms=(5, 0, 0, 0.1, 0),
        epsilon=0.05,
        adaptation=0.01,
        window=64,
    )
    gate = HostGate(clock=clock)
    state = ServingState(log, gate=gate)
    creditor = Creditor(
        gate,
        state,
        model,
        log,
        largest_step=(1, 64, 0),
        largest_chunk=(0, 0, 256),
        segment_prior_ms=5,
        segment_share=0.99,
        poll_ms=1,
        retry_ms=1,
        clock=clock,
    )
    log.append_move(from_partition=-1, to_partition=0, slabs=4, lease_id=0, epoch=2, move_kind=0)
    state.beat()
    creditor.start()
    for _ in range(2):
        gate.begin_step()
        gate.pass_(timeout_ms=10_000)
        clock.advance(2_000_000)
        gate.end_step()
        slot = state.arrived(tokens=64)
        clock.advance(1_000_000)
        began_ns = clock.now_ns()
        clock.advance(6_000_000)
        waits = {"blocked_ms": 0.5, "lent_ms": 0.25, "began_ns": began_ns}
        log.append_step(model.observe(6.0, **STEP), actual_ms=6.0, **STEP, **waits)
        state.finished(slot)
        state.beat()
    slot = state.arrived(tokens=64)
    state.emitted([slot])
    began_ns = clock.now_ns()
    clock.advance(6_000_000)
    log.append_step(model.observe(6.0, **STEP), actual_ms=6.0, **STEP, began_ns=began_ns)
    gate.begin_step()
    # The creditor's thread may be deciding: then serving asks again.
    while creditor.offer() is None:
        assert creditor.last_refusal in (QuantumRefusal.NONE, QuantumRefusal.SERVING_BUSY)
    creditor.withdraw()
    gate.end_step()
    creditor.stop()
    creditor.wait_parked(borrower=1)  # No segment runs, so the wait takes no time.
    state.finished(slot)
    slot = state.arrived(tokens=64)
    terms = AdmissionTerms(
        epoch=2,
        to_partition=1,
        slabs=3,
        blocks_per_slab=8,
        block_tokens=16,
        free_serving_blocks=32,
        unowned_slabs=6,
        revocable_blocks=0,
        horizon_ms=50,
        running_requests=1,
        decode_tokens_per_s=100,
        prefill_tokens_per_s=4160,
        max_request_tokens=256,
        max_batch_tokens=128,
        burst_requests=2,
        burst_request_tokens=40,
    )
    assert admission_certificate(terms, log=log, serving=state) is not None
    state.finished(slot)
    log.append_move(from_partition=-1, to_partition=1, slabs=3, lease_id=1, epoch=3, move_kind=2)
    deadline_ns = clock.now_ns() + 50_000_000
    log.append_revoke_begun(deadline_ns=deadline_ns, slabs=2)
    log.append_move(from_partition=1, to_partition=0, slabs=2, lease_id=1, epoch=4, move_kind=3)
    log.append_move(from_partition=1, to_partition=-2, slabs=1, lease_id=1, epoch=5, move_kind=4)
    log.append_move(from_partition=-2, to_partition=-1, slabs=1, lease_id=0, epoch=6, move_kind=5)
    lend_again(log, state)
    log.append_evicted(borrower=1, pid=77, reason="it waited")
    log.append_gave_back("the test is over")
    log.close()


def lend_again(log: CertificateLog, state: ServingState) -> None:
    """Lend the four slabs that nobody has to the borrower, and take them back in two ways."""
    terms = AdmissionTerms(
        epoch=6,
        to_partition=1,
        slabs=4,
        blocks_per_slab=8,
        block_tokens=16,
        free_serving_blocks=48,
        unowned_slabs=4,
        revocable_blocks=0,
        horizon_ms=50,
        running_requests=0,
        decode_tokens_per_s=100,
        prefill_tokens_per_s=4160,
        max_request_tokens=256,
        max_batch_tokens=128,
        burst_requests=1,
        burst_request_tokens=40,
    )
    for slabs in (2, 4):  # another one would be admitted as well, and is overtaken
        terms.slabs = slabs
        assert admission_certificate(terms, log=log, serving=state) is not None
    log.append_move(from_partition=-1, to_partition=1, slabs=4, lease_id=2, epoch=7, move_kind=2)
    log.append_move(from_partition=1, to_partition=-1, slabs=3, lease_id=2, epoch=8, move_kind=3)
    log.append_move(from_partition=0, to_partition=-1, slabs=6, lease_id=0, epoch=9, move_kind=1)


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """Return the path of an honest log."""
    path = tmp_path / "certificates.log"
    write_log(path)
    return path
