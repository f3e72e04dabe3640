"""Certificates of compute, their log and the latency model: what they cost."""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.conftest import Report
from bench.paired import quantile
from bench.rows import Bar, Peer
from rose._core import (
    AdmissionTerms,
    Arbiter,
    CertificateLog,
    CloseReason,
    Creditor,
    Grant,
    HarvestMode,
    HostGate,
    MoveLog,
    RecordKind,
    ServingState,
    admission_certificate,
    empty_call,
)
from rose.errors import check
from rose.slo import Policy
from rose.slo.evidence import SHAPE_NAMES, Shape, collect_evidence
from rose.slo.latency_file import new_latency_model
from rose.slo.verify import verify_log

POLICY = Policy()
LONG_MS = 60_000.0
SPINS_MAX = 10_000_000  # a second or so, for what takes microseconds
# Calls in one measurement: both sides take about as long, so a busy machine takes from both alike.
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
        modes=Policy(mode="slack").mode_bits,
        slabs=SLABS,
        partitions=2,
        blocks_per_slab=BLOCKS_PER_SLAB,
        block_tokens=16,
        max_request_tokens=1024,
        max_batch_tokens=512,
        burst_requests=1,
        revoke_ms=50.0,
    )


# ---- certificates


class Certifier:
    """A creditor with all it reads, and a borrower that always wants more."""

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
            segment_share=POLICY.segment_share,
            poll_ms=POLICY.poll_ms,
            retry_ms=POLICY.retry_ms,
        )

        collect_evidence(self.model, (STEP, CHUNK), self._run)

    def _run(self, shape: Shape) -> None:
        self.model.observe(5.0, **dict(zip(SHAPE_NAMES, shape, strict=True)))

    def run_segments(self, count: int) -> None:
        """Give the estimate of a segment as many as it looks at."""
        self.gate.begin_step()
        self.gate.grant(count)
        check(self.gate.open(self.gate.close_epoch), "nobody else closes this gate")
        for _ in range(count):
            self.gate.pass_(timeout_ms=LONG_MS)
        self.gate.end_step()
        self.gate.close(CloseReason.ARRIVAL)

    def interrupt(self) -> None:
        """Let a request arrive: the gate is closed and its credit is void."""
        self.slot = self.state.arrived(tokens=1)

    def certify(self) -> None:
        """Let it finish; returns when the certified quantum is there."""
        self.state.finished(self.slot)
        is_open = self.gate.is_open
        for _ in range(SPINS_MAX):
            if is_open():
                return
        check(False, f"no quantum was certified: {self.creditor.last_refusal}")

    @classmethod
    @contextmanager
    def running(cls, path: Path) -> "Iterator[Certifier]":
        one = cls(path)
        one.state.beat()
        one.gate.begin_step()
        one.creditor.start()
        one.interrupt()
        try:
            yield one
        finally:
            one.creditor.stop()
            one.log.close()


def test_certified_quantum_us(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Certifier.running(path) as one:
        samples = report.each(one.certify, 50, undo=one.interrupt, rest=one.log.flush)
        quanta = one.log.count(RecordKind.QUANTUM)
    # One more where an opening came too late for its close.
    check(quanta >= len(samples), "every opening has its certificate")
    # From serving's last word: the wake of the creditor's thread is most of it.
    report.add("certified_quantum_us", quantile(samples, 0.5) * 1e-3, "us")
    report.add("certified_quantum_us_p99", quantile(samples, 0.99) * 1e-3, "us")


def test_certificate_over_empty_call(report: Report, tmp_path: Path) -> None:
    one = Certifier(tmp_path / "log")
    one.run_segments(SEGMENTS)
    one.state.beat()
    one.state.emitted([one.state.arrived(tokens=1000)])
    certify = one.creditor.certify

    def certify_ns() -> float:
        one.state.emitted([0])  # Its next token is due a TPOT target from now.
        began_ns = time.perf_counter_ns()
        for _ in range(CERTIFICATES):
            certify()
        took_ns = time.perf_counter_ns() - began_ns
        # No creditor asks as often as this loop: the log's ring would be full before it is written.
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
        "a certificate that was not recorded was not measured",
    )
    one.log.close()
    report.add_ratio(
        "certificate_over_empty_call",
        paired,
        peer=Peer("a bound call that does nothing", paired.peer, "ns"),
        bar=Bar(at_most=10.0),
    )
    report.add("certificate_ns", paired.subject, "ns")


def test_log_append_ns(report: Report, tmp_path: Path) -> None:
    log = certificate_log(tmp_path / "log")

    def appends(count: int) -> None:
        append = log.append_revoke_begun
        for _ in range(count):
            append(deadline_ns=1, slabs=1)

    # Fewer than the ring holds: a full ring refuses, and that is not what is measured.
    append_ns = report.loop(appends, rounds=200, calls=2000, undo=log.flush)
    check(log.is_healthy, "the ring was never full")
    log.close()
    report.add("log_append_ns", append_ns, "ns")


def steps_of(count: int) -> list[tuple[float, float, float, float]]:
    """Return steps: how long, and what they worked on."""
    rng = random.Random(17)
    steps: list[tuple[float, float, float, float]] = []
    for _ in range(count):
        sequences, context = rng.randint(1, 64), rng.randint(0, 50_000)
        prefill = rng.choice((0, 0, 0, 512))
        expected_ms = 5 + 0.1 * sequences + 1e-4 * context + 0.05 * prefill
        steps.append((expected_ms * rng.uniform(0.95, 1.2), sequences, context, prefill))
    return steps


def test_latency_model_us(report: Report) -> None:
    model = new_latency_model(POLICY, step_tokens=512)
    steps = steps_of(500)
    forecasts_us: list[float] = []

    def observe_all(_count: int) -> None:
        observe = model.observe
        for actual_ms, sequences, context, prefill in steps:
            observe(
                actual_ms,
                decode_sequences=sequences,
                context_tokens=context,
                prefill_tokens=prefill,
            )

    def forecast_all() -> None:
        forecast = model.forecast
        began_ns = time.perf_counter_ns()
        for _, sequences, context, prefill in steps:
            forecast(decode_sequences=sequences, context_tokens=context, prefill_tokens=prefill)
        forecasts_us.append((time.perf_counter_ns() - began_ns) * 1e-3 / len(steps))

    observe_ns = report.loop(observe_all, rounds=100, calls=len(steps), undo=forecast_all)
    report.add("latency_model_observe_us", observe_ns * 1e-3, "us")
    report.add("latency_model_forecast_us", statistics.median(forecasts_us), "us")


# ---- the second opinion


def lend_and_return(log: CertificateLog) -> Callable[[], None]:
    """Return a loan under a certificate, there and back."""
    arbiter = Arbiter.create(
        slab_bytes=1 << 21, slab_count=SLABS, header_slabs=2, observer=MoveLog(log)
    )
    arbiter.add_partition("serving", reserve_slabs=0, limit_slabs=SLABS)
    rollout = arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=SLABS)

    def once() -> None:
        snapshot = arbiter.snapshot()
        terms = AdmissionTerms(
            epoch=snapshot.epoch,
            to_partition=rollout,
            slabs=2,
            blocks_per_slab=BLOCKS_PER_SLAB,
            block_tokens=16,
            free_serving_blocks=0,
            unowned_slabs=snapshot.unowned,
            revocable_blocks=0,
            horizon_ms=50.0,
            running_requests=1,
            decode_tokens_per_s=100.0,
            prefill_tokens_per_s=1000.0,
            max_request_tokens=1024,
            max_batch_tokens=512,
            burst_requests=1,
            burst_request_tokens=16,
        )
        check(admission_certificate(terms, log=log) is not None, "there is room for two slabs")
        loan = arbiter.grant(rollout, 2, ttl_ns=10**12, expected_epoch=snapshot.epoch)
        check(isinstance(loan, Grant), "nobody else takes slabs")
        arbiter.revoke(rollout, 2, deadline_ns=arbiter.now_ns() + 10**9)

    return once


def write_log(path: Path, cycles: int) -> int:
    """Write a log with every kind of certificate; returns how many records it has."""
    with Certifier.running(path) as one:
        lend = lend_and_return(one.log)
        for number, (actual_ms, sequences, context, prefill) in enumerate(steps_of(cycles)):
            if number % 100 == 0:
                one.log.flush()  # no engine is as fast as this loop: the ring would fill up
            one.certify()
            lend()
            features = {
                "decode_sequences": sequences,
                "context_tokens": context,
                "prefill_tokens": prefill,
            }
            forecast = one.model.forecast(**features)
            one.log.append_step(forecast, actual_ms=actual_ms, **features)
            one.interrupt()
        one.log.flush()
    check(one.log.is_healthy, "every record went to the disk")
    return int(one.log.records)


def test_verify_records_per_s(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "log"
    records = write_log(path, report.count(4000))

    def verify(_count: int) -> None:
        answer = verify_log(path)
        check(not answer.violations, "\n".join(answer.violations[:3]))
        check(answer.records == records, f"{records} records, of which it saw {answer.records}")

    record_ns = report.loop(verify, rounds=7, calls=records)
    report.add("verify_records_per_s", 1e9 / record_ns, "records/s")
