import io
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from rose._core import Arbiter, LedgerView
from rose.cli.main import main
from rose.cli.top import WatchedDevice, draw
from rose.clock import BootClock
from rose.compute.usage import GpuUse
from rose.executor import SLO, CoServing, KVGeometry, Policy, RolloutLane
from rose.executor.messages import Ledger
from rose.units import NS_PER_MS

SLAB = 4096
GEOMETRY = KVGeometry(layers=1, block_tokens=16, bytes_per_token=64)


@pytest.fixture
def device(tmp_path: Path):
    """It listens, with two slabs of serving's."""
    policy = Policy(latency_prior_ms=(500.0, 0.0, 0.0, 0.0, 0.0), lease_ttl_ms=60_000.0)
    with CoServing.open("cpu", pool_bytes=18 * SLAB, slab_bytes=SLAB, policy=policy) as device:
        slo = SLO(ttft_ms=20_000, tpot_ms=1000)
        device.serving(GEOMETRY, slo=slo, reserve_bytes=2 * SLAB, step_tokens=16, request_tokens=32)
        device.listen(str(tmp_path / "device.sock"))
        yield device


@pytest.fixture
def borrower(device: CoServing):
    """It is attached, and has three slabs."""
    with CoServing.attach(device._listener.path) as attached:
        lane = attached.rollout(GEOMETRY, limit_bytes=8 * SLAB)
        assert lane.ensure(12)
        blocks = lane.kv.allocator.alloc(5)
        assert blocks is not None
        lane.pin(blocks)
        yield lane


@pytest.fixture
def path(device: CoServing, tmp_path: Path) -> str:
    return str(tmp_path / "device.sock")


@pytest.fixture
def shown(
    borrower: RolloutLane, path: str, capsys: pytest.CaptureFixture[str]
) -> Callable[[], str]:
    """Return what `rose top --once` prints, each time it is called."""

    def run() -> str:
        assert main(["top", path, "--once"]) == 0
        return capsys.readouterr().out

    return run


def rows(text: str) -> list[list[str]]:
    """Return the cells of each partition."""
    lines = [line.strip("│ ") for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.split("│")] for line in lines]


def text_of(shown: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(shown)
    return out.getvalue()


def test_top_shows_who_has_which_slab(shown: Callable[[], str]) -> None:
    out = shown()
    assert "SSrrr" + 11 * "." in out
    for word in ("16 slabs", "11 free", "leaving", "pins", "oldest ms", "gpu: the device is a CPU"):
        assert word in out
    serving, rollout = rows(out)
    assert serving == ["serving", "2", "0.00", "2-16", "0", "0", "0", "-", "0", "-"]
    assert rollout[:7] == ["rollout", "3", "0.00", "0-8", "3", "0", "0"]


def test_pins_of_each_tenant_are_shown_with_the_age_of_the_oldest(
    shown: Callable[[], str],
) -> None:
    deadline = time.monotonic() + 60
    while rows(shown())[1][8] == "0":  # The borrower tells, and serving's keeper looks.
        assert time.monotonic() < deadline
    rollout = rows(shown())[1]
    assert rollout[8] == "1"
    assert 0 <= int(rollout[9]) < 600_000
    time.sleep(0.002)
    assert int(rows(shown())[1][9]) > int(rollout[9])


def test_revocation_that_is_due_first_is_shown() -> None:
    """Two are under way, the newest of which is due last."""
    arbiter = Arbiter.create(slab_bytes=SLAB, slab_count=4, header_slabs=1)
    serving = arbiter.add_partition("serving", reserve_slabs=0, limit_slabs=4)
    rollout = arbiter.add_partition("rollout", reserve_slabs=0, limit_slabs=4)
    blocks = arbiter.allocator(rollout, block_bytes=1024, origin_bytes=0)
    arbiter.grant(rollout, 2, ttl_ns=10**12)
    blocks.pin_slabs([0, 1])
    clock = BootClock()
    for ms in (20_000, 50_000):
        deadline_ns = clock.now_ns() + ms * NS_PER_MS
        arbiter.revoke(rollout, 1, deadline_ns=deadline_ns, taker=serving)
    fd = arbiter.share_ledger()
    text = text_of(draw(LedgerView.open(fd), Ledger(1, "cpu"), use=GpuUse(), clock=clock))
    os.close(fd)
    due = [row[7] for row in rows(text)]
    assert due[0] == "-"
    assert 0 < int(due[1]) <= 20_000


def test_cap_is_shown_with_the_time_that_it_still_holds(
    device: CoServing, shown: Callable[[], str]
) -> None:
    assert "cap -" in shown()
    for cap_bytes, ttl_ms, line in (
        (1 << 40, math.inf, "cap -"),  # a cap that is lifted
        (8 * SLAB, math.inf, "cap 0.00 GiB until the next cap"),
        (8 * SLAB, 6e8, "cap 0.00 GiB for "),
        (0, 6e8, "cap 0.00 GiB for "),
        (8 * SLAB, 0.0, "cap expired: nothing is lent until the next cap"),
    ):
        device.lend_at_most(cap_bytes, ttl_ms=ttl_ms)
        assert line in shown()


def test_a_cap_is_asked_for_again_and_runs_out_where_nobody_answers(
    device: CoServing, path: str
) -> None:
    clock = BootClock()
    looked_at = WatchedDevice(path, clock)
    device.lend_at_most(4 * SLAB, ttl_ms=500.0)
    assert "cap -" in text_of(looked_at.look())  # as it was said
    looked_at.ask_again()
    assert "cap 0.00 GiB for 0." in text_of(looked_at.look())
    Path(path).unlink()  # where it listens
    clock.sleep(0.6)
    looked_at.ask_again()
    assert "cap expired" in text_of(looked_at.look())


def test_why_rollouts_wait_is_shown(
    device: CoServing, borrower: RolloutLane, shown: Callable[[], str]
) -> None:
    assert "refused" not in shown()
    assert not borrower.try_step(timeout_ms=50)
    out = " ".join(shown().split())
    assert " no evidence" in out
    assert "slo at risk" not in out
    assert f"last failed: {device.reading().binding.sentence}" in out


def test_harm_is_shown_with_its_budget_its_reason_and_the_pause(
    borrower: RolloutLane, device: CoServing
) -> None:
    reported = Ledger(
        os.getpid(),
        "cpu",
        kills=("the borrower, process 7, was killed: serving waited",),
        waited_ms=640.4,
        wait_budget_ms=1000.0,
        segment=(912.0, 187.5),
        barred="no borrower may attach for another 3.5 s, because it was killed",
    )
    fd = device.arbiter.share_ledger()
    try:
        text = text_of(draw(LedgerView.open(fd), reported, use=GpuUse(), clock=BootClock()))
    finally:
        os.close(fd)
    assert "waited beyond certificates in 10 min: 640 of 1000 ms" in text
    assert "a rollout segment takes 912 ms, but serving's targets allow 188 ms" in text
    assert "process 7, was killed: serving waited" in text
    assert "no borrower may attach for another 3.5 s" in text


@pytest.mark.parametrize("name", ["nothing.sock", "x" * 200])
def test_no_device_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path / name), "--once"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("rose: ")
