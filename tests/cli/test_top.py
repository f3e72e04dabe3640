import json
import math
import os
import time
from pathlib import Path

import pytest

from rose._core import Arbiter, LedgerView
from rose.cli.main import main
from rose.cli.top import WatchedDevice, read_moment
from rose.clock import BootClock
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


@pytest.fixture(autouse=True)
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


def test_top_shows_who_has_which_slab(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", path, "--once"]) == 0
    out = capsys.readouterr().out
    assert "SSrrr" in out.replace("\n", "")
    for word in ("serving", "rollout", "16 slabs", "leaving", "pins", "oldest ms"):
        assert word in out


def test_pins_of_each_tenant_are_shown_with_the_age_of_the_oldest(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows() -> list[dict]:
        assert main(["top", path, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["partitions"]

    deadline = time.monotonic() + 60
    while rows()[1]["pins"] == 0:  # The borrower tells, and serving's keeper looks.
        assert time.monotonic() < deadline
    serving, rollout = rows()
    assert (serving["pins"], serving["oldest_pin_ms"]) == (0, None)
    assert rollout["pins"] == 1
    assert 0 < rollout["oldest_pin_ms"] < 600_000
    assert rows()[1]["oldest_pin_ms"] > rollout["oldest_pin_ms"]


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
    moment = read_moment(LedgerView.open(fd), Ledger(1), clock=clock)
    os.close(fd)
    deadlines = [row.deadline_ms for row in moment.partitions]
    assert deadlines[0] is None
    assert 0 < deadlines[1] < 20_000


def test_json_has_the_same_numbers(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", path, "--json"]) == 0
    moment = json.loads(capsys.readouterr().out)
    assert moment["strip"] == "SSrrr" + 11 * "."
    assert moment["free"] == 11
    serving, rollout = moment["partitions"]
    assert (serving["name"], serving["held"], serving["reserve"]) == ("serving", 2, 2)
    assert (rollout["name"], rollout["lent"], rollout["leases"]) == ("rollout", 3, 1)


@pytest.mark.parametrize(
    ("cap", "said", "line"),
    [
        (None, (None, None), "cap -"),
        ((16 * SLAB, math.inf), (None, None), "cap -"),  # a cap that is lifted
        ((8 * SLAB, math.inf), (8 * SLAB, None), "cap 0.00 GiB until the next"),
        ((8 * SLAB, 6e8), (8 * SLAB, pytest.approx(6e8, rel=0.01)), "s more"),
        ((0, 6e8), (0, pytest.approx(6e8, rel=0.01)), "cap 0.00 GiB for "),
        ((8 * SLAB, 0.0), (0, 0.0), "cap ran out: nothing is lent until the next"),
    ],
)
def test_cap_is_shown_with_the_time_that_it_still_holds(
    cap, said, line, device: CoServing, capsys: pytest.CaptureFixture[str]
) -> None:
    if cap is not None:
        device.lend_at_most(cap[0], ttl_ms=cap[1])
    assert main(["top", device._listener.path, "--json"]) == 0
    moment = json.loads(capsys.readouterr().out)
    assert (moment["cap_bytes"], moment["cap_left_ms"]) == said
    assert main(["top", device._listener.path, "--once"]) == 0
    assert line in capsys.readouterr().out


def test_a_cap_is_asked_for_again_and_runs_out_where_nobody_answers(
    device: CoServing, path: str
) -> None:
    clock = BootClock()
    looked_at = WatchedDevice(path, clock)
    device.lend_at_most(4 * SLAB, ttl_ms=500.0)
    assert looked_at.look().cap_bytes is None  # as it was said
    looked_at.ask_again()
    moment = looked_at.look()
    assert moment.cap_bytes == 4 * SLAB
    assert moment.cap_left_ms is not None
    assert 0 < moment.cap_left_ms <= 500
    Path(path).unlink()  # where it listens
    clock.sleep(0.6)
    looked_at.ask_again()
    moment = looked_at.look()
    assert (moment.cap_bytes, moment.cap_left_ms) == (0, 0.0)


def test_why_rollouts_wait_is_shown(
    device: CoServing, path: str, borrower: RolloutLane, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", path, "--once"]) == 0
    assert "refused" not in capsys.readouterr().out
    assert not borrower.try_step(timeout_ms=50)
    assert main(["top", path, "--json"]) == 0
    moment = json.loads(capsys.readouterr().out)
    assert moment["refusals"]["no_evidence"] > 0
    assert moment["refusals"]["slo_at_risk"] == 0
    assert moment["binding"] == device.reading().binding.sentence
    assert main(["top", path, "--once"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "no evidence" in out
    assert moment["binding"] in out


@pytest.mark.parametrize("name", ["nothing.sock", "x" * 200])
def test_no_device_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path / name), "--once"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("rose: ")
