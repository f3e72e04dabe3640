"""Cost of a certificate: the check, its log record, and the decision of a whole grant."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.conftest import Report
from bench.rows import Bar, Peer
from rose._core import (
    AdmissionTerms,
    CertificateLog,
    ServingState,
    admission_certificate,
    empty_call,
)
from rose.errors import check

# Calls per measurement. Subject and peer take about the same time, so interruptions by a busy
# machine, every few milliseconds, affect both alike.
ADMISSIONS, EMPTY_CALLS = 100, 1500


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CertificateLog]:
    """Return a log that writes to a file, as in production."""
    log = CertificateLog(
        str(tmp_path / "log"),
        ttft_ms=500,
        tpot_ms=50,
        epsilon=0.01,
        signal_ms=1,
        blocking_ms=100,
        heartbeat_ttl_ms=250,
        max_segments=8,
        slabs=4096,
        partitions=2,
        blocks_per_slab=16,
    )
    yield log
    log.close()


def some_terms() -> AdmissionTerms:
    """Return the terms of a grant of one slab from a pool of 128 GiB."""
    return AdmissionTerms(
        epoch=7,
        to_partition=1,
        slabs=1,
        blocks_per_slab=16,
        block_tokens=16,
        free_serving_blocks=900,
        unowned_slabs=2048,
        revocable_blocks=0,
        horizon_ms=50.0,
        running_requests=64,
        decode_tokens_per_s=80.0,
        prefill_tokens_per_s=50_000.0,
        max_request_tokens=32_768,
        max_batch_tokens=8192,
        burst_requests=4,
        burst_request_tokens=2048,
    )


def test_admit_over_empty_call(report: Report, log: CertificateLog) -> None:
    serving = ServingState(log)
    terms = some_terms()

    def admit_ns() -> float:
        began_ns = time.perf_counter_ns()
        for _ in range(ADMISSIONS):
            admission_certificate(terms, log=log, serving=serving)
        took_ns = time.perf_counter_ns() - began_ns
        # This loop asks more often than any lender: the log's ring would fill up before its
        # records are written.
        log.flush()
        return took_ns / ADMISSIONS

    def empty_ns() -> float:
        began_ns = time.perf_counter_ns()
        for _ in range(EMPTY_CALLS):
            empty_call()
        return (time.perf_counter_ns() - began_ns) / EMPTY_CALLS

    paired = report.pairs(admit_ns, empty_ns, rounds=501)
    check(
        log.is_healthy and admission_certificate(terms, log=log) is not None,
        "certificates were not recorded, so their cost was not measured",
    )
    report.add_ratio(
        "admit_over_empty_call",
        paired,
        peer=Peer("a bound call that does nothing", paired.peer, "ns"),
        bar=Bar(at_most=20.0),
    )
    report.add("admit_ns", paired.subject, "ns")
