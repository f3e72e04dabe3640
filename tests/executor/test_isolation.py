"""`isolation="mapped"`: a borrower reaches what it is lent, finds zeros there, and nothing else."""

import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from rose.errors import InvalidArgument, Unavailable
from rose.executor import SLO, CoServing, Policy, Quantum, Reason, Refusal
from rose.executor.lent_window import LentWindow
from rose.executor.messages import Granted
from rose.memory import LentSlabs
from tests.executor import test_gpu as gpu
from tests.executor.conftest import ROLLOUT_KV, SERVING_KV, SLAB, SLABS, Rig

# The same as ever, with each slab mapped by itself: these run here with the `rig` of this file.
from tests.executor.test_attached import (  # noqa: F401 (collected here too)
    BLOCKS_PER_SLAB,
    Child,
    RemoteRig,
    descriptors,
    test_a_step_that_pins_what_serving_needs_is_aborted_in_its_process,
    test_idle_slabs_come_home_from_a_process_that_is_stopped,
    test_nothing_leaks_from_many_tenants,
)
from tests.fake_driver import Fake, in_child
from tests.known_model import confirm
from tests.waiting import LONG_S, wait_for

SECRET = 0x5A
EVERYTHING = SLABS * SERVING_KV.blocks_per_slab(SLAB)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RemoteRig]:
    made = RemoteRig(tmp_path, isolation="mapped", regrow_after_ms=0.0)
    made.device.arbiter.pool_view()[:] = SECRET
    yield made
    made.close()


def take_everything(rig: RemoteRig) -> None:
    assert rig.serving.ensure(EVERYTHING)
    assert rig.slabs() == (0, 0)


def bytes_of(rig: RemoteRig, slab: int) -> set[int]:
    start = (2 + slab) * SLAB
    return set(rig.device.arbiter.pool_view()[start : start + SLAB].tolist())


def borrow(rig: RemoteRig, child: Child, slabs: int) -> list[int]:
    wait_for(lambda: child.do("borrow", slabs * BLOCKS_PER_SLAB) >= slabs * BLOCKS_PER_SLAB)
    held = child.do("slabs")
    assert len(held) == slabs
    return held


def test_borrower_finds_zeros_where_others_had_bytes(rig: RemoteRig) -> None:
    child = rig.attach()
    lent = borrow(rig, child, 3)
    assert child.do("content") == [0]
    child.do("fill", 7)
    for slab in range(SLABS):
        assert bytes_of(rig, slab) == ({7} if slab in lent else {SECRET})


def test_borrower_dies_where_it_was_never_lent_a_slab(rig: RemoteRig) -> None:
    child = rig.attach()
    lent = borrow(rig, child, 2)
    child.say("touch", next(slab for slab in range(SLABS) if slab not in lent))
    assert child.process.wait(LONG_S) == -signal.SIGSEGV
    wait_for(lambda: rig.slabs() == (0, 0))
    assert rig.device.gave_back is None
    borrow(rig, rig.attach(), 1)


def test_slab_that_was_taken_back_is_unmapped_by_a_borrower_that_does_nothing(
    rig: RemoteRig,
) -> None:
    child = rig.attach()
    assert child.do("mapped") == 1  # its header slab
    slab, *_ = borrow(rig, child, 3)
    assert child.do("touch", slab) == 0
    child.do("give")
    take_everything(rig)
    wait_for(lambda: child.do("mapped") == 1)
    child.say("touch", slab)
    assert child.process.wait(LONG_S) == -signal.SIGSEGV


def test_slab_is_zeros_whenever_it_is_lent(rig: RemoteRig) -> None:
    child = rig.attach()
    for round_ in range(1, 6):
        borrow(rig, child, 4)
        assert child.do("content") == [0]
        child.do("fill", round_)
        take_everything(rig)
        rig.serving.settle()


def test_serving_keeps_every_byte_while_slabs_come_and_go(rig: RemoteRig) -> None:
    """What serving takes back in the middle of a grant is not made zeros under it."""
    over, failures = threading.Event(), []
    view = rig.device.arbiter.pool_view()
    kv = rig.serving.kv

    def serve() -> None:
        while not over.is_set():
            rig.serving.ensure(EVERYTHING)
            blocks = kv.allocator.alloc(kv.allocator.free_blocks) or []
            rows = [slice(at := kv.allocator.block_offset(one), at + 1024) for one in blocks]
            for row in rows:
                view[row] = 9
            over.wait(0.001)
            failures.extend(row for row in rows if not (view[row] == 9).all())
            kv.allocator.free(blocks)
            rig.serving.settle()
            over.wait(0.002)

    rig.start(serve)
    seen = 0
    with CoServing.attach(rig.path) as device:
        lane = device.rollout(ROLLOUT_KV, limit_bytes=SLABS * SLAB)
        lane.on_revoke = lambda _notice: None

        def churn() -> bool:
            nonlocal seen
            lane.ensure(4 * BLOCKS_PER_SLAB)
            blocks = lane.kv.allocator.alloc(BLOCKS_PER_SLAB)
            if blocks is not None:
                seen += 1
                lane.kv.allocator.free(blocks)
            return seen >= 20

        wait_for(churn)
        over.set()
    assert failures == []
    assert rig.device.gave_back is None


def test_borrower_of_the_same_process_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "log", lends=False, isolation="mapped")
    with pytest.raises(InvalidArgument, match="another process"):
        rig.device.rollout(ROLLOUT_KV, limit_bytes=SLAB)
    rig.close()


def test_pool_of_more_slabs_than_descriptors_is_refused() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    device = CoServing.open(
        "cpu", pool_bytes=(limit + 2) * SLAB, slab_bytes=SLAB, isolation="mapped"
    )
    with device, pytest.raises(InvalidArgument, match=f"this process may have at most {limit}"):
        device.serving(SERVING_KV, slo=SLO(ttft_ms=1000, tpot_ms=50))


def test_grant_of_more_slabs_than_a_message_has_descriptors_is_cut(
    rig: RemoteRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rose.executor.tenancy.DESCRIPTORS_MAX", 2)
    child = rig.attach()
    assert child.do("borrow", 3 * BLOCKS_PER_SLAB) == 0
    assert child.do("state")["slabs"] == 2
    borrow(rig, child, 3)


def test_scrub_that_fails_ends_the_tenancy_and_serving_goes_on(
    rig: RemoteRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_loans: object, _slabs: object) -> None:
        raise Unavailable("on purpose")

    child = rig.attach()
    with monkeypatch.context() as patch:
        patch.setattr("rose.memory.mapped.MappedLoans.lend", fail)
        child.do("borrow", 1)
    wait_for(lambda: child.do("state")["is_closed"])
    wait_for(lambda: rig.slabs() == (0, 0))
    borrow(rig, rig.attach(), 1)


# ---- a GPU


class GpuRig:
    """Serving on GPU 0, and a borrower of the same process that attaches at a socket."""

    def __init__(self, name: str = "cuda:0") -> None:
        self.folder = TemporaryDirectory()
        path = Path(self.folder.name) / "device.sock"
        self.device = CoServing.open(
            name,
            pool_bytes=(gpu.SLABS + 2) * gpu.SLAB,
            slab_bytes=gpu.SLAB,
            isolation="mapped",
            policy=Policy(**gpu.CALM),
        )
        slo = SLO(ttft_ms=200_000, tpot_ms=1000)
        self.serving = self.device.serving(
            gpu.SERVING_KV, slo=slo, reserve_bytes=gpu.SLAB, step_tokens=32, request_tokens=64
        )
        confirm(self.device._parts.model, 32)
        self.device.listen(path)
        self.attached = CoServing.attach(path)
        self.rollout = self.attached.rollout(gpu.ROLLOUT_KV, limit_bytes=gpu.SLABS * gpu.SLAB)

    def step(self) -> Quantum:
        """Begin a step, whenever that is allowed."""
        begun: list[Quantum] = []

        def has_begun() -> bool:
            answer = self.rollout.try_step(timeout_ms=50)
            begun.extend([] if isinstance(answer, Refusal) else [answer])
            return bool(begun)

        gpu.wait_for(has_begun)
        return begun[0]

    def close(self) -> None:
        self.attached.close()
        self.device.close()
        self.folder.cleanup()


def names(fake: Fake) -> list[str]:
    return [line.split("(")[0] for line in fake.log()]


@in_child(FAKECUDA_DEVICES="2", FAKECUDA_UUIDS="5,6")
def test_borrower_opens_servings_gpu(fake: Fake) -> None:
    rig = GpuRig("cuda:1")
    assert rig.rollout.device is not None
    assert rig.rollout.device.ordinal == 1
    assert rig.rollout.device.facts.uuid.endswith("4706")
    rig.close()
    assert fake.faults() == []


@in_child(FAKECUDA_ATTRIBUTES="133=1")
def test_no_borrower_attaches_under_mps(fake: Fake) -> None:
    with pytest.raises(Unavailable, match="Fake GPU 0 runs under MPS"):
        GpuRig()
    assert fake.faults() == []


@in_child()
def test_slab_is_scrubbed_on_a_stream_that_the_gates_test_saw(fake: Fake) -> None:
    rig = GpuRig()
    streams = fake.calls("cuStreamCreateWithPriority")
    priorities = [line for line in fake.log() if line.startswith("cuStreamCreateWithPriority")]
    assert any(", -1)" in line for line in priorities), priorities
    gpu.wait_for(lambda: rig.rollout.ensure(32))
    assert fake.calls("cuStreamCreateWithPriority") == streams
    rig.close()


@in_child()
def test_slab_of_a_gpu_is_scrubbed_then_mapped_and_serving_takes_it_without_a_call(
    fake: Fake,
) -> None:
    rig = GpuRig()
    fake.reset()
    gpu.wait_for(lambda: rig.rollout.ensure(32))
    called = names(fake)
    assert called.count("cuMemMap") == 2
    last_scrub = max(at for at, name in enumerate(called) if name.startswith("cuMemsetD"))
    assert last_scrub < called.index("cuMemMap")
    fake.reset()
    everything = gpu.SLABS * gpu.SERVING_KV.blocks_per_slab(gpu.SLAB)
    before = fake.calls("cuMemUnmap")
    assert rig.serving.ensure(everything)
    assert not any(name in ("cuMemMap", "cuMemSetAccess") for name in names(fake))
    gpu.wait_for(lambda: fake.calls("cuMemUnmap") == before + 2)  # the borrower's, at leisure
    rig.close()


@in_child()
def test_nothing_is_mapped_or_unmapped_while_a_step_runs(fake: Fake) -> None:
    rig = GpuRig()
    gpu.wait_for(lambda: rig.rollout.ensure(16))
    quantum = rig.step()
    fake.reset()
    with quantum:
        answer = rig.rollout.grow(64)
        assert isinstance(answer, Refusal)
        assert answer.reason is Reason.IN_STEP
        everything = gpu.SLABS * gpu.SERVING_KV.blocks_per_slab(gpu.SLAB)
        assert rig.serving.ensure(everything)  # it was idle
        rig.rollout._loans.tidy()
        assert fake.calls("cuMemUnmap") == fake.calls("cuMemMap") == 0
        rig.rollout.finish()
    gpu.wait_for(lambda: fake.calls("cuMemUnmap") == 1)
    rig.close()


@in_child()
def test_slabs_that_are_lent_when_a_step_has_begun_are_mapped_after_it(fake: Fake) -> None:
    rig = GpuRig()
    gpu.wait_for(lambda: rig.rollout.ensure(16))
    line, begun = rig.rollout._loans._line, []
    ask = line._ask

    def slow(question: Any) -> tuple[Any, list[int]]:
        """The thread of steps is faster than the answer."""
        answer = ask(question)
        if isinstance(answer[0], Granted):
            begun.append(rig.step())
            fake.reset()
        return answer

    line._ask = slow
    reasons = []

    def has_grown() -> bool:
        reasons.append(rig.rollout.grow(32).reason)
        return bool(begun)

    gpu.wait_for(has_grown)
    assert reasons[-1] is Reason.IN_STEP
    assert fake.calls("cuMemMap") == 0
    with begun[0]:
        assert rig.rollout.kv.allocator.free_blocks == 16
        rig.rollout.finish()
        assert fake.calls("cuMemMap") == 0
    assert fake.calls("cuMemMap") == 1
    assert rig.rollout.kv.allocator.free_blocks == 32
    rig.close()


def test_slabs_that_were_lent_too_late_are_let_go_of() -> None:
    def lent() -> LentSlabs:
        return LentSlabs({0: os.open("/dev/null", os.O_RDONLY)})

    def fail(*_: object, **_named: object) -> None:
        raise Unavailable("planted")

    window: Any = SimpleNamespace(is_on_host=False, take=fail)
    attachment: Any = SimpleNamespace()
    before = descriptors()
    with LentWindow(attachment, window) as one:
        one.step_began()
        assert not one.can_take
        assert not any(one.take(lent()) for _ in range(3))
        with pytest.raises(Unavailable, match="planted"):
            one.step_ended()
        assert descriptors() == before
        one.step_began()
        one.take(lent())
    assert descriptors() == before
