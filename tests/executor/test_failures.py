"""Hosts that freeze and die, clocks that jump, gates that never park, drivers that fail."""

import gc
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rose.compute.gpu as compute_gpu
from rose._core import CloseReason, ManualClock
from rose.errors import RoseError, StepAborted
from rose.executor import SLO, CoServing, Policy, Quantum, Reason, Refusal, StepBatch
from rose.units import NS_PER_MS
from tests.executor import test_gpu as gpu
from tests.executor.conftest import CALM, SERVING_KV, SLAB, ParkedStep, Rig
from tests.executor.test_attached import BLOCKS_PER_SLAB, Child
from tests.executor.test_serving_dies import Serving
from tests.fake_driver import Fake, in_child
from tests.known_model import confirm
from tests.waiting import LONG_S, wait_for

QUANTUM = Policy().max_segments


# ---- serving's process freezes or dies -----------------------------------------------------------


class ServingProcess(Serving):
    """Serving in a process of its own, with a borrower of another process in a step."""

    def __init__(self, folder: Path) -> None:
        # No lease expires: what is looked at is credit.
        knobs = {"lease_ttl_ms": 1e7, "heartbeat_ttl_ms": 250.0}
        super().__init__(str(folder / "device.sock"), "shared", **knobs)
        self.borrower = Child(self.path)
        self.borrower.do("borrow", BLOCKS_PER_SLAB)
        assert self.borrower.do("begin_step")
        self.borrower.do("go_on")  # segment after segment, for ever
        first = self.passed()
        wait_for(lambda: self.passed() > first + 3 * QUANTUM)

    def passed(self) -> int:
        return self.borrower.do("credit")["passed"]

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def end(self) -> None:
        self.borrower.end()
        self.kill()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ServingProcess]:
    made = ServingProcess(tmp_path)
    yield made
    made.end()


def test_a_frozen_serving_process_lets_a_quantum_start_and_no_more(pair: ServingProcess) -> None:
    pair.freeze()
    then = pair.passed()
    wait_for(lambda: pair.borrower.do("credit")["left"] == 0)
    last = pair.passed()
    assert last - then <= QUANTUM
    time.sleep(0.3)  # as long as a heartbeat counts, and longer than any look
    assert pair.passed() == last
    pair.process.send_signal(signal.SIGCONT)
    wait_for(lambda: pair.passed() > last)
    assert pair.borrower.do("state")["gave_back"] is None


def test_a_killed_serving_process_lets_a_quantum_start_and_ends_the_step(
    pair: ServingProcess,
) -> None:
    pair.process.kill()
    pair.process.wait(LONG_S)
    then = pair.passed()
    assert "closed" in pair.borrower.do("end_step")
    assert pair.passed() - then <= QUANTUM
    state = pair.borrower.do("state")
    assert state["is_closed"]
    assert pair.borrower.process.poll() is None  # the borrower is told, and lives


# ---- the borrower sticks -------------------------------------------------------------------------


def test_slabs_that_a_stuck_step_does_not_pin_leave_and_the_others_are_late(open_rig) -> None:
    rig = open_rig(tend_every_ms=5.0, revoke_ms=30.0)
    step = ParkedStep(rig, rig.borrow(30))
    rig.rollout.ensure(30)  # Nothing uses these slabs.
    lent = rig.counts()[1]
    is_stuck, is_back = threading.Event(), threading.Event()

    def stick() -> None:
        is_stuck.set()
        is_back.wait(LONG_S)

    rig.rollout.on_look = stick
    rig.serving.arrived("a", prompt_tokens=8)
    step.park()
    assert is_stuck.wait(LONG_S)
    assert not rig.serving.ensure(64)
    assert rig.counts()[1] == 0
    assert 0 < rig.counts()[3] < lent
    rig.serving.finished("a")
    is_back.set()
    wait_for(lambda: step.outcome)
    wait_for(lambda: rig.counts()[3] == 0)
    assert rig.device.gave_back is None


def test_a_parked_borrower_that_looks_up_keeps_its_lease(open_rig) -> None:
    rig = open_rig(lease_ttl_ms=1000.0, tend_every_ms=5.0)
    step = ParkedStep(rig, rig.borrow(30))
    lent = rig.counts()[1]
    rig.serving.arrived("a", prompt_tokens=8)
    step.park()
    looks = [0]
    rig.rollout.on_look = lambda: looks.__setitem__(0, looks[0] + 1)
    wait_for(lambda: looks[0] >= 22)  # 50 ms each: longer than a lease lasts
    assert rig.counts()[1] == lent
    assert rig.rollout.leaving() == frozenset()
    rig.serving.finished("a")
    wait_for(lambda: step.outcome == "passed")


def test_a_device_whose_borrower_never_parks_closes_all_the_same(open_rig) -> None:
    rig = open_rig(park_wait_ms=20.0, revoke_ms=30.0)
    step = ParkedStep(rig, rig.borrow(60))
    lent = rig.counts()[1]
    rig.serving.arrived("a", prompt_tokens=8)
    with rig.serving.step(StepBatch(1, 8, 8)):
        assert rig.device.gate.is_running()  # serving did not wait for ever
    rig.device.close()
    assert rig.counts()[1] == 0
    assert 0 < rig.counts()[3] <= lent  # nobody else may have what a step still writes to
    step.may_go_on.set()
    wait_for(lambda: step.outcome == "closed")
    rig.threads[0].join(LONG_S)
    assert not rig.device.gate.is_running()


# ---- clocks that jump ----------------------------------------------------------------------------

JUMPS_MS = (-3_600_000, -1000, -1, 0, 1, 50, 5000, 3_600_000)


@given(
    jumps=st.lists(st.tuples(st.sampled_from(JUMPS_MS), st.integers(0, 4)), min_size=1, max_size=25)
)
def test_whatever_the_clock_does_serving_has_its_memory_and_the_books_are_right(jumps) -> None:
    clock = ManualClock()
    with TemporaryDirectory() as folder:
        rig = Rig(Path(folder) / "log", clock=clock, revoke_ms=20.0, tend_every_ms=1.0)
        for jump_ms, deed in jumps:
            clock.advance(jump_ms * NS_PER_MS)
            if deed == 0:
                rig.rollout.ensure(8)
            elif deed == 1:
                rig.serving.arrived("a", prompt_tokens=8)
                with rig.serving.step(StepBatch(1, 8, 8)):
                    assert rig.serving.ensure(2 * 4)  # the reserve
                rig.serving.emitted("a")
            elif deed == 2:
                rig.serving.finished("a")
                rig.serving.settle()
            elif deed == 3 and (quantum := rig.rollout.try_step(timeout_ms=2)):
                with quantum:
                    clock.advance(jump_ms * NS_PER_MS)
            rig.device._tend()
        assert rig.device.gave_back is None
        rig.serving.finished("a")
        assert rig.serving.ensure(16 * 4)
        rig.close()


def test_a_clock_that_jumps_ahead_ends_credit_until_serving_is_heard_of_again(open_rig) -> None:
    clock = ManualClock()
    rig = open_rig(clock=clock, heartbeat_ttl_ms=250.0)
    rig.step_once(lambda: None)
    rig.stop_keeper()
    rig.device.gate.close(CloseReason.REVOCATION)
    clock.advance(251 * NS_PER_MS)
    answer = rig.rollout.try_step(timeout_ms=50)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.NO_HEARTBEAT
    rig.device._tend()
    rig.step_once(lambda: None)


def test_no_lease_outlives_a_jump_of_the_clock_and_lending_goes_on(open_rig) -> None:
    """As when the machine slept: time that passed has passed, for an idle borrower too."""
    clock = ManualClock()
    rig = open_rig(clock=clock, lease_ttl_ms=100.0)
    rig.stop_keeper()
    assert rig.rollout.ensure(30)
    clock.advance(3_600_000 * NS_PER_MS)
    rig.device._tend()
    assert rig.counts()[1] == 0
    assert rig.rollout.ensure(30)
    assert rig.device.gave_back is None


# ---- the driver fails ----------------------------------------------------------------------------


def serve_and_borrow() -> None:
    """Open a GPU, let both sides work, and close it; only the borrower's side may raise."""
    device = CoServing.open(
        "cuda:0",
        pool_bytes=(gpu.SLABS + 2) * gpu.SLAB,
        slab_bytes=gpu.SLAB,
        policy=Policy(**{**gpu.CALM, "park_wait_ms": 50.0}),
    )
    try:
        serving = device.serving(
            gpu.SERVING_KV,
            slo=SLO(ttft_ms=200_000, tpot_ms=1000),
            reserve_bytes=gpu.SLAB,
            step_tokens=32,
            request_tokens=64,
        )
    except (RoseError, MemoryError):
        device.close()
        raise
    confirm(device._parts.model, 32)
    failure: RoseError | MemoryError | None = None
    try:
        lane = device.rollout(gpu.ROLLOUT_KV, limit_bytes=gpu.SLABS * gpu.SLAB)
        lane.ensure(16)
        step(lane)
    except (RoseError, MemoryError) as error:
        failure = error
    serving.arrived("a", prompt_tokens=8)
    with serving.step(StepBatch(1, 8, 8)), serving.blocking():
        assert serving.ensure(gpu.SLABS * 8)  # everything there is
        taken = serving.alloc(1)
    serving.kv.allocator.free(taken)
    serving.emitted("a")
    serving.finished("a")
    serving.settle()
    device.close()
    now = device.arbiter.snapshot()
    assert now.quarantined == 0
    assert [one.held for one in now.partitions[1:]] in ([], [0])
    device.arbiter.check_invariants()
    if failure is not None:
        raise failure


def step(lane) -> None:
    deadline = time.monotonic() + LONG_S
    while not isinstance(quantum := lane.try_step(timeout_ms=20), Quantum):
        if quantum.reason is Reason.CLOSED:
            return
        assert time.monotonic() < deadline, "no step was allowed in time"
    with quantum:
        try:
            for _ in range(3):
                lane.gate()
            lane.finish()
        except StepAborted:
            pass


def called(fake: Fake) -> Counter[str]:
    """How often each entry of the driver was called; what a call held is indented."""
    return Counter(line.split("(")[0] for line in fake.log() if not line.startswith(" "))


def keep_running(fake: Fake) -> None:
    """Let the streams of the fake go on by themselves, as those of a device do."""
    while True:
        fake.pump()
        time.sleep(0.0005)


@in_child()
def test_serving_never_hears_of_a_driver_call_that_fails_whichever_it_is(fake: Fake) -> None:
    threading.Thread(target=keep_running, args=(fake,), daemon=True).start()
    # The fake runs no kernel: a gate that is one, the second choice, would look stuck for good.
    stock = compute_gpu.probe_gates
    compute_gpu.probe_gates = lambda *args, **named: stock(
        *args, **{**named, "in_one_process": False}
    )
    serve_and_borrow()
    gc.collect()
    counts = called(fake)
    failed = heard = 0
    for name, count in counts.items():
        nth = 1  # 1, 2, 4, ...: most calls are one in a loop of hundreds
        while nth <= count:
            fake.reset()
            fake.fail(name, nth=nth, code=gpu.OUT_OF_MEMORY)
            try:
                serve_and_borrow()
            except (RoseError, MemoryError):
                heard += 1
            failed += not fake.is_fail_pending()
            gc.collect()
            assert fake.faults() == [], f"call {nth} of {name}"
            assert fake.live() == [], f"call {nth} of {name}"
            nth *= 2
    assert failed > 60
    assert heard > 15


# ---- disks that are full -------------------------------------------------------------------------


def test_a_full_disk_under_the_certificates_costs_no_measurement(tmp_path: Path) -> None:
    log_path, latency_path = tmp_path / "log", tmp_path / "latency"
    device = CoServing.open(
        "cpu",
        pool_bytes=18 * SLAB,
        slab_bytes=SLAB,
        log_path=log_path,
        latency_path=latency_path,
        policy=Policy(**CALM),
    )
    slo = SLO(ttft_ms=20_000, tpot_ms=1000)
    serving = device.serving(SERVING_KV, slo=slo, step_tokens=32, request_tokens=64)
    for _ in range(4000):
        with serving.step(StepBatch(1, 8, 0)):
            pass
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores SIGXFSZ, so a file that grows beyond it fails as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, limits[1]))
    try:
        device.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "certificate log" in str(device.gave_back)
    assert latency_path.stat().st_size > 0
