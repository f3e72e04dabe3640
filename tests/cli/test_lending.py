"""An operator's switch acts on a device that listens, and holds after a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rose.cli.main import main
from rose.executor import SLO, CoServing, KVGeometry, Policy
from tests.waiting import wait_for

SLAB = 4096
GEOMETRY = KVGeometry(layers=1, block_tokens=16, bytes_per_token=64)
POOL_SLABS = 16


def open_device(path: Path) -> CoServing:
    device = CoServing.open(
        "cpu",
        pool_bytes=(POOL_SLABS + 2) * SLAB,
        slab_bytes=SLAB,
        policy=Policy(latency_prior_ms=(500.0, 0.0, 0.0, 0.0, 0.0), regrow_after_ms=0.0),
    )
    slo = SLO(ttft_ms=20_000, tpot_ms=1000)
    device.serving(GEOMETRY, slo=slo, reserve_bytes=2 * SLAB, step_tokens=16, request_tokens=32)
    device.listen(path)
    return device


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "device.sock"


@pytest.fixture
def device(path: Path) -> Iterator[CoServing]:
    with open_device(path) as device:
        yield device


def test_off_takes_back_what_is_lent_and_on_lends_again(device: CoServing, path: Path) -> None:
    with CoServing.attach(path) as attached:
        lane = attached.rollout(GEOMETRY, limit_bytes=8 * SLAB)
        assert lane.ensure(12)
        assert device.lender.lent_slabs == 3
        assert main(["lending", "off", "--socket", str(path)]) == 0
        wait_for(lambda: device.lender.lent_slabs == 0)
        assert not lane.ensure(4)
        assert main(["lending", "on", "--socket", str(path)]) == 0
        wait_for(lambda: lane.ensure(4))


def test_a_limit_is_a_share_of_the_pool(
    device: CoServing, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lending", "limit", "0.25", "--socket", str(path)]) == 0
    assert f"lends at most {4 * SLAB / 2**20:g} of" in capsys.readouterr().out
    with CoServing.attach(path) as attached:
        lane = attached.rollout(GEOMETRY, limit_bytes=16 * SLAB)
        assert lane.ensure(16)
        assert not lane.ensure(17)
    device.lend_at_most(16 * SLAB, ttl_ms=60_000)  # A broker cannot lift what an operator said.
    assert device.lender.cap.slabs == 4


def test_a_limit_holds_after_a_restart(device: CoServing, path: Path) -> None:
    assert main(["lending", "limit", "0.5", "--socket", str(path)]) == 0
    device.close()
    with open_device(path) as again:
        assert again.lender.cap.slabs == POOL_SLABS // 2


@pytest.mark.parametrize("text", ["many", "2", "nan", "-0.1"])
def test_a_file_that_holds_no_share_is_refused(
    path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(f"{path}.limit").write_text(text)
    from rose.errors import CorruptData

    with pytest.raises(CorruptData, match="must hold a share of the pool"):
        open_device(path)


def test_a_share_over_one_is_refused(
    device: CoServing, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lending", "limit", "1.5", "--socket", str(path)]) == 2
    assert "1.5 is not in the range" in capsys.readouterr().err
    assert device.lender.cap.slabs == POOL_SLABS
