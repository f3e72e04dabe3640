"""Cost of a certificate of compute, with its log record."""

import math
import time
from pathlib import Path

from bench.conftest import Report
from bench.rows import Bar, Peer
from rose._core import (
    CertificateLog,
    CloseReason,
    Creditor,
    HarvestMode,
    HostGate,
    ServingState,
    empty_call,
)
from rose.errors import check
from rose.slo import Policy
from rose.slo.evidence import SHAPE_NAMES, Shape, collect_evidence
from rose.slo.latency_file import new_latency_model
from rose.slo.policy import POLL_MS, RETRY_MS, SEGMENT_SHARE

POLICY = Policy()
LONG_MS = 60_000.0
# Calls per measurement. Both sides take about the same time, so a busy machine affects both alike.
CERTIFICATES, EMPTY_CALLS = 150, 1500
SEGMENTS = 512
STEP, CHUNK = (1.0, 1000.0, 0.0), (0.0, 1000.0, 512.0)
SLABS, BLOCKS_PER_SLAB = 64, 128


def certificate_log(path: Path) -> CertificateLog:
    return CertificateLog(
        str(path),
        ttft_ms=1000.0,
        tpot_ms=100.0,
        epsilon=POLICY.epsilon,
        signal_ms=POLICY.signal_ms,
        blocking_ms=POLICY.blocking_ms,
        heartbeat_ttl_ms=LONG_MS,
        max_segments=POLICY.max_segments,
        slowdown=math.inf,
        slabs=SLABS,
        partitions=2,
        blocks_per_slab=BLOCKS_PER_SLAB,
        block_tokens=16,
        max_request_tokens=1024,
        max_batch_tokens=512,
        burst_requests=1,
        revoke_ms=50.0,
    )


class Certifier:
    """A creditor and its inputs."""

    def __init__(self, path: Path) -> None:
        self.gate = HostGate()
        self.log = certificate_log(path)
        self.state = ServingState(self.log, gate=self.gate)
        self.model = new_latency_model(POLICY, step_tokens=512)
        self.creditor = Creditor(
            self.gate,
            self.state,
            self.model,
            self.log,
            largest_step=STEP,
            largest_chunk=CHUNK,
            segment_prior_ms=1.0,
            segment_share=SEGMENT_SHARE,
            poll_ms=POLL_MS,
            retry_ms=RETRY_MS,
        )

        collect_evidence(self.model, (STEP, CHUNK), self._run)

    def _run(self, shape: Shape) -> None:
        self.model.observe(5.0, **dict(zip(SHAPE_NAMES, shape, strict=True)))

    def run_segments(self, count: int) -> None:
        """Run as many segments as the estimate of their duration uses."""
        self.gate.begin_step()
        self.gate.grant(count)
        check(self.gate.open(self.gate.close_epoch), "something else closed this gate")
        for _ in range(count):
            self.gate.pass_(timeout_ms=LONG_MS)
        self.gate.end_step()
        self.gate.close(CloseReason.ARRIVAL)


def test_certificate_over_empty_call(report: Report, tmp_path: Path) -> None:
    one = Certifier(tmp_path / "log")
    one.run_segments(SEGMENTS)
    one.state.beat()
    one.state.emitted([one.state.arrived(tokens=1000)])
    certify = one.creditor.certify

    def certify_ns() -> float:
        one.state.emitted([0])  # its next token is due one TPOT target from now
        began_ns = time.perf_counter_ns()
        for _ in range(CERTIFICATES):
            certify()
        took_ns = time.perf_counter_ns() - began_ns
        # This loop asks more often than any creditor: the log's ring would fill up before its
        # records are written.
        one.log.flush()
        return took_ns / CERTIFICATES

    def empty_ns() -> float:
        began_ns = time.perf_counter_ns()
        for _ in range(EMPTY_CALLS):
            empty_call()
        return (time.perf_counter_ns() - began_ns) / EMPTY_CALLS

    paired = report.pairs(certify_ns, empty_ns, rounds=501)
    check(
        one.log.is_healthy and one.creditor.granted(HarvestMode.SLACK) > CERTIFICATES,
        "certificates were not recorded, so their cost was not measured",
    )
    one.log.close()
    report.add_ratio(
        "certificate_over_empty_call",
        paired,
        peer=Peer("a bound call that does nothing", paired.peer, "ns"),
        bar=Bar(at_most=10.0),
    )
    report.add("certificate_ns", paired.subject, "ns")
