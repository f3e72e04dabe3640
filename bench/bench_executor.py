"""Serving and a borrower on one device: interference with serving, and harvest.

Both engines are threads with work of a known length; no model is loaded.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from bench.busy import busy_work
from bench.conftest import Report
from bench.paired import quantile, timed
from bench.rows import Bar, Peer
from rose.errors import StepAborted, check
from rose.executor import (
    SLO,
    CoServing,
    KVGeometry,
    Policy,
    Quantum,
    RolloutLane,
    ServingLane,
)
from rose.executor.revocation import Notice, Revocation
from rose.units import MIB, NS_PER_MS

KV = KVGeometry(layers=4, block_tokens=16, bytes_per_token=1024)
POOL_BYTES, RESERVE_BYTES, LIMIT_BYTES = 64 * MIB, 4 * MIB, 40 * MIB
SEGMENT_MS = 1.3
SEGMENTS_PER_STEP = 8
PATIENCE_S = 20.0
PROBE_S = 0.001  # duration of a probed step before the first request


class Pair:
    """A device with both lanes."""

    def __init__(self, log_path: Path) -> None:
        # Loans are granted again at once, so a run has many revocations.
        policy = Policy(regrow_after_ms=0, aborts_per_s=1e6)
        self.device = CoServing.open("cpu", pool_bytes=POOL_BYTES, log_path=log_path, policy=policy)
        self.serving: ServingLane = self.device.serving(
            KV,
            slo=SLO(ttft_ms=1000, tpot_ms=100),
            reserve_bytes=RESERVE_BYTES,
            step_tokens=256,
            request_tokens=512,
        )
        self.rollout: RolloutLane = self.device.rollout(KV, limit_bytes=LIMIT_BYTES)
        self.serving.warm_up(lambda _batch: time.sleep(PROBE_S))

    def segment_ms_p99(self) -> float:
        return float(self.device.gate.stats().segment_ms_p99)

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> "Iterator[Pair]":
        pair = cls(folder / "log")
        with pair.device:
            yield pair
            gave_back = pair.device.gave_back
            check(gave_back is None, f"rose gave up: {gave_back}")


class Borrower:
    """A rollout engine that takes all blocks it can get, and runs one step after the other."""

    def __init__(self, lane: RolloutLane) -> None:
        self._lane = lane
        self._work = busy_work(SEGMENT_MS)
        self._wanted = LIMIT_BYTES // KV.block_bytes
        self._books = threading.Lock()  # guards the two fields below
        self._blocks: dict[int, list[int]] = {}  # by slab
        self._pin: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        lane.on_revoke = self._on_revoke

    def is_in_step(self) -> bool:
        return self._pin is not None

    def _on_revoke(self, _notice: Notice) -> None:
        with self._books:
            if self._pin is None:
                self._free_leaving()

    def _free_leaving(self) -> None:
        gone = [block for slab in self._lane.leaving() for block in self._blocks.pop(slab, ())]
        self._lane.kv.allocator.free(gone)

    def _fill(self) -> None:
        missing = self._wanted - sum(len(blocks) for blocks in self._blocks.values())
        if missing <= 0:
            return
        self._lane.ensure(missing)
        allocator = self._lane.kv.allocator
        with self._books:
            blocks = allocator.alloc(min(missing, allocator.free_blocks)) or []
            for block, slab in zip(blocks, allocator.slabs_of(blocks), strict=True):
                self._blocks.setdefault(slab, []).append(block)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._fill()
            match self._lane.try_step(timeout_ms=20.0):
                case Quantum() as quantum:
                    self._step(quantum)

    def _step(self, quantum: Quantum) -> None:
        with self._books:
            self._pin = self._lane.pin(chain.from_iterable(self._blocks.values()))
        try:
            with quantum:
                self._work()
                for _ in range(SEGMENTS_PER_STEP - 1):
                    self._lane.gate()
                    self._work()
        except StepAborted:
            pass  # only the pin must be undone
        finally:
            with self._books:
                pin, self._pin = self._pin, None
                if pin is not None:
                    self._free_leaving()
                    self._lane.unpin(pin)

    @classmethod
    @contextmanager
    def running(cls, lane: RolloutLane) -> "Iterator[Borrower]":
        borrower = cls(lane)
        borrower._thread.start()
        try:
            yield borrower
        finally:
            borrower._stop.set()
            borrower._thread.join(PATIENCE_S)
            check(not borrower._thread.is_alive(), "the borrower did not stop in time")


def sleep_some(rng: random.Random) -> None:
    """Sleep until a random moment of a segment."""
    time.sleep(rng.uniform(0.5, 2.5) * SEGMENT_MS * 1e-3)


def wait_until_running(pair: Pair, borrower: Borrower) -> None:
    """Wait until a step of the borrower runs and holds the largest loan."""
    deadline = time.monotonic() + PATIENCE_S
    slabs = LIMIT_BYTES // pair.device.arbiter.slab_bytes
    while not (
        borrower.is_in_step() and pair.device.gate.is_open() and len(pair.rollout.slabs()) == slabs
    ):
        check(time.monotonic() < deadline, "the borrower got no slabs or no credit in time")
        time.sleep(1e-4)


def newest_settled(pair: Pair, number: int) -> Revocation:
    """Return the `number`th revocation once it is settled, by its deadline at the latest."""
    deadline = time.monotonic() + PATIENCE_S
    history = pair.device.lender.collector.history
    while len(history) < number:
        check(time.monotonic() < deadline, "a revocation was not settled in time")
        time.sleep(1e-4)
    return history[number - 1]


# ---- waits of serving


def test_arrival_to_parked_over_segment(report: Report, tmp_path: Path) -> None:
    rng = random.Random(3)
    waits_ms: list[float] = []

    with Pair.open(tmp_path) as pair, Borrower.running(pair.rollout) as borrower:

        def request() -> None:
            wait_until_running(pair, borrower)
            sleep_some(rng)
            began_ns = time.perf_counter_ns()
            pair.serving.arrived("request", prompt_tokens=16)
            with pair.serving.step():
                waits_ms.append((time.perf_counter_ns() - began_ns) / NS_PER_MS)
            pair.serving.finished("request")

        report.repeat(request, 600)
        segment_ms = pair.segment_ms_p99()
    report.add(
        "arrival_to_parked_over_segment",
        quantile(waits_ms, 0.99) / segment_ms,
        "ratio",
        peer=Peer("a segment, p99", segment_ms, "ms"),
        bar=Bar(at_most=1.1),
    )


def test_revoke_under_load_ms_p99(report: Report, tmp_path: Path) -> None:
    rng = random.Random(5)
    settled: list[Revocation] = []  # begun alternately within a segment and at a closed gate

    with Pair.open(tmp_path) as pair, Borrower.running(pair.rollout) as borrower:
        blocks_per_slab = KV.blocks_per_slab(pair.device.arbiter.slab_bytes)

        def take_two_slabs() -> None:
            unowned = pair.device.arbiter.snapshot().unowned
            free = pair.serving.kv.allocator.free_blocks
            pair.serving.ensure(free + (unowned + 2) * blocks_per_slab)
            revocation = newest_settled(pair, len(settled) + 1)
            check(
                revocation.slabs_returned + revocation.slabs_fenced == 2,
                "a slab was neither returned nor fenced",
            )
            settled.append(revocation)

        def running() -> None:
            """Revoke in the middle of a segment."""
            wait_until_running(pair, borrower)
            sleep_some(rng)
            take_two_slabs()
            pair.serving.settle()

        def parked() -> None:
            """Revoke while the step waits at its closed gate."""
            wait_until_running(pair, borrower)
            sleep_some(rng)
            pair.serving.arrived("request", prompt_tokens=16)
            with pair.serving.step():
                take_two_slabs()
            pair.serving.finished("request")
            pair.serving.settle()

        def both() -> None:
            running()
            parked()

        report.repeat(both, 300)
        segment_ms = pair.segment_ms_p99()
        outcomes = [(one.aborted_steps, one.slabs_fenced) for one in settled]
    running_ms = [one.latency_ms for one in settled[::2]]
    parked_ms = [one.latency_ms for one in settled[1::2]]
    bar = Bar(at_most=segment_ms + 1.0)
    report.add("revoke_under_load_ms_p99", quantile(running_ms, 0.99), "ms", bar=bar)
    report.add("revoke_under_load_ms_p50", quantile(running_ms, 0.50), "ms")
    report.add("revoke_parked_step_ms_p99", quantile(parked_ms, 0.99), "ms", bar=bar)
    report.add("revoke_parked_step_ms_p50", quantile(parked_ms, 0.50), "ms")
    aborts, fenced = (sum(column) for column in zip(*outcomes, strict=True))
    report.add("aborts_per_revocation", aborts / len(settled), "steps")
    report.add("revoke_under_load_fenced_slabs", fenced, "slabs")


# ---- harvest


def test_idle_harvest_share(report: Report, tmp_path: Path) -> None:
    work = busy_work(SEGMENT_MS)
    steps = 8

    def without_gate() -> None:
        for _ in range(steps * SEGMENTS_PER_STEP):
            work()

    with Pair.open(tmp_path) as pair:
        lane = pair.rollout

        def one_step() -> None:
            quantum = lane.try_step(timeout_ms=1000.0)
            check(isinstance(quantum, Quantum), "an idle serving engine refused a quantum")
            if isinstance(quantum, Quantum):
                with quantum:
                    work()
                    for _ in range(SEGMENTS_PER_STEP - 1):
                        lane.gate()
                        work()

        def with_gate() -> None:
            for _ in range(steps):
                one_step()

        # Time without rose divided by time with it: the remaining share of segments per second.
        paired = report.pairs(timed(without_gate), timed(with_gate), rounds=31)
    per_second = 1e9 * steps * SEGMENTS_PER_STEP
    report.add_ratio(
        "idle_harvest_share",
        paired,
        peer=Peer("without a gate", per_second / paired.subject, "segments/s"),
        bar=Bar(at_least=0.95),
    )
    report.add("idle_harvest_segments_per_s", per_second / paired.peer, "segments/s")
