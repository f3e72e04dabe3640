"""Opening and closing a device: wrong arguments are one sentence, and nothing stays behind."""

import contextlib
import gc
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from rose._core import Arbiter
from rose.errors import InvalidArgument, OutOfMemory, RoseError, Unavailable
from rose.executor import SLO, CoServing, KVGeometry, wiring
from rose.slo.verify import verify_log
from tests.executor.conftest import HEADERS, ROLLOUT_KV, SERVING_KV, SLAB, SLABS, ParkedStep
from tests.waiting import wait_for

TARGETS = SLO(ttft_ms=500, tpot_ms=50)
LIMITS = {"step_tokens": 32, "request_tokens": 64}
POOL_BYTES = (SLABS + HEADERS) * SLAB


def belongings() -> tuple[list[str], set[threading.Thread], int]:
    """What this process holds: open files, Python threads, and threads of the core."""
    gc.collect()
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing itself
            links.append(str(fd.readlink()))
    tasks = len(list(Path("/proc/self/task").iterdir()))
    return sorted(links), set(threading.enumerate()), tasks


def open_device(**knobs) -> CoServing:
    return CoServing.open("cpu", **{"pool_bytes": POOL_BYTES, "slab_bytes": SLAB, **knobs})


def use(device: CoServing) -> None:
    serving = device.serving(SERVING_KV, slo=TARGETS, reserve_bytes=2 * SLAB, **LIMITS)
    rollout = device.rollout(ROLLOUT_KV, limit_bytes=SLABS * SLAB)
    serving.arrived("a", prompt_tokens=8)
    with serving.step():
        pass
    serving.finished("a")
    rollout.ensure(4)


def test_close_is_idempotent_and_leaves_nothing(tmp_path: Path) -> None:
    with open_device() as device:
        use(device)  # loads what is loaded once
    del device
    before = belongings()
    for _ in range(3):
        with open_device(log_path=tmp_path / "log") as device:
            use(device)
            held = belongings()
            device.close()
            device.close()
        assert held != before
        assert device.arbiter.snapshot().partitions[1].held == 0
        # Threads end with the close; the kernel takes a moment to strike one off its list.
        wait_for(lambda: belongings()[1:] == before[1:])
        del device
        assert belongings() == before
        assert verify_log(tmp_path / "log").is_complete


def test_device_that_was_never_used_closes(tmp_path: Path) -> None:
    before = belongings()
    open_device(log_path=tmp_path / "log").close()
    with open_device() as device:
        device.serving(SERVING_KV, slo=TARGETS, reserve_bytes=0, **LIMITS)
    assert device.gave_back is None
    del device
    assert belongings() == before


def test_close_takes_back_what_is_lent(open_rig) -> None:
    rig = open_rig()
    step = ParkedStep(rig, rig.borrow(60))
    rig.serving.arrived("a", prompt_tokens=8)
    step.park()
    rig.device.close()
    assert step.outcome == "aborted"
    assert rig.counts()[1] == 0
    assert rig.device.gave_back is None
    # The lanes outlive the device without harm.
    rig.serving.finished("a")
    with rig.serving.step():
        pass
    assert rig.serving.ensure(64)


class FailingArbiter:
    """Makes arbiters whose `n`-th call of the back end fails."""

    def __init__(self, n: int) -> None:
        self.n = n

    def create(self, **arguments: object) -> Arbiter:
        return Arbiter.create(**arguments, fail_backend_call=self.n)


def test_nothing_leaks_when_the_nth_backend_call_of_opening_fails(monkeypatch, tmp_path) -> None:
    with open_device() as device:
        use(device)
    del device
    before = belongings()
    failures = 0
    for n in range(1, 100):
        monkeypatch.setattr(wiring, "Arbiter", FailingArbiter(n))
        device = open_device(log_path=tmp_path / "log")
        try:
            device.serving(SERVING_KV, slo=TARGETS, reserve_bytes=SLAB, **LIMITS)
        except (Unavailable, OutOfMemory):
            # Not even while the failure, and with it the frame that failed, is still looked at.
            threads = belongings()[1:]
            failures += 1
        else:
            break
        finally:
            device.close()
            del device
        assert threads == before[1:]
        assert belongings() == before
    else:
        pytest.fail("opening never succeeded")
    assert failures > 2


def says(call, *words: str) -> None:
    """Check that `call` raises one sentence with these words: the value, and the mend."""
    with pytest.raises(InvalidArgument) as caught:
        call()
    sentence = str(caught.value)
    assert isinstance(caught.value, RoseError)
    assert "\n" not in sentence
    assert [word for word in words if word not in sentence] == [], sentence


def test_wrong_arguments_are_one_sentence_with_the_value_and_the_mend() -> None:
    def add(device: CoServing, **knobs) -> object:
        arguments = {"slo": TARGETS, "reserve_bytes": 0, **LIMITS, **knobs}
        return device.serving(SERVING_KV, **arguments)

    says(lambda: open_device(pool_bytes=0), "pool_bytes must be above 0", "got 0")
    says(lambda: CoServing.open("tpu:7", pool_bytes=1), "must be 'cpu'", "got 'tpu:7'")
    says(lambda: add(open_device(pool_bytes=2 * SLAB)), "no room", "raise pool_bytes")
    for pool_bytes in ((1 << 31) * SLAB + 2 * SLAB, 1 << 62, 1 << 70):
        says(lambda: add(open_device(pool_bytes=pool_bytes)), "slabs", "lower pool_bytes")  # noqa: B023
    with open_device() as device:
        says(
            lambda: add(device, reserve_bytes=POOL_BYTES),
            "reserve_bytes must be from 0 to",
            f"a pool of {POOL_BYTES} bytes",
            f"got {POOL_BYTES}",
        )
        says(
            lambda: add(device, request_tokens=1 << 20),
            f"{1 << 20} tokens",
            f"{POOL_BYTES} bytes",
            "lower request_tokens or raise pool_bytes",
        )
    with open_device(slab_bytes=5000) as device:
        says(lambda: add(device), "5000")
    with open_device(log_path="/nonexistent/folder/log") as device:
        with pytest.raises(RoseError) as caught:
            add(device)
        assert "/nonexistent/folder/log" in str(caught.value)


def test_a_path_of_a_log_that_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, says_why in (
        ("pipe", "must be a regular file"),
        ("cut\0off", "must not have a zero byte"),
        ("\udcff", "must be UTF-8"),
    ):
        with open_device(log_path=tmp_path / name) as device:
            says(partial(use, device), says_why)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_step_times_are_neither_read_from_a_pipe_nor_written_to_one(tmp_path: Path) -> None:
    path = tmp_path / "times"
    os.mkfifo(path)
    with open_device(latency_path=path) as device:
        says(partial(use, device), "not a regular file")
    path.unlink()
    device = open_device(latency_path=path)
    use(device)
    os.mkfifo(path)
    with pytest.raises(InvalidArgument, match="No such device"):
        device.close()


def test_wrong_order_of_calls_is_one_sentence() -> None:
    with open_device() as device:
        says(lambda: device.rollout(ROLLOUT_KV, limit_bytes=SLAB), "serving engine before")
        use(device)
        says(lambda: use(device), "already has a serving engine", "open another device")
        says(lambda: device.rollout(ROLLOUT_KV, limit_bytes=SLAB), "can have one borrower")
    says(lambda: use(device), "closed", "open another")
    says(lambda: device.rollout(ROLLOUT_KV, limit_bytes=SLAB), "closed", "open another")


def test_borrower_that_wastes_too_much_is_refused_with_the_size_that_suits() -> None:
    wasteful = KVGeometry(layers=1, block_tokens=8, bytes_per_token=200)  # 1600 do not divide 4096
    with open_device() as device:
        device.serving(SERVING_KV, slo=TARGETS, reserve_bytes=SLAB, **LIMITS)
        says(
            lambda: device.rollout(wasteful, limit_bytes=SLABS * SLAB),
            f"{wasteful.waste(SLAB):.0%}",
            "slab_bytes=",
        )
        assert device.rollout(ROLLOUT_KV, limit_bytes=SLABS * SLAB)


def test_borrower_that_only_asks_now_and_then_gets_its_turn(open_rig) -> None:
    rig = open_rig()
    for _ in range(20):
        rig.serving.arrived("a", prompt_tokens=8)
        rig.serving.finished("a")
        quantum = None
        for _ in range(20):
            threading.Event().wait(0.002)
            quantum = rig.rollout.try_step()
            if quantum:
                break
        assert quantum, "asked 20 times and never heard"
        with quantum:
            pass
