import json
from pathlib import Path

import pytest

from rose.cli.main import main
from rose.executor import SLO, CoServing, KVGeometry, Policy

SLAB = 4096
GEOMETRY = KVGeometry(layers=1, block_tokens=16, bytes_per_token=64)


@pytest.fixture
def path(tmp_path: Path):
    """A device that listens, with two slabs of serving's and three that are lent."""
    policy = Policy(latency_prior_ms=(500.0, 0.0, 0.0, 0.0, 0.0), lease_ttl_ms=60_000.0)
    with CoServing.open("cpu", pool_bytes=18 * SLAB, slab_bytes=SLAB, policy=policy) as device:
        slo = SLO(ttft_ms=20_000, tpot_ms=1000)
        device.serving(GEOMETRY, slo=slo, reserve_bytes=2 * SLAB, step_tokens=16, request_tokens=32)
        path = str(tmp_path / "device.sock")
        device.listen(path)
        with CoServing.attach(path) as borrower:
            lane = borrower.rollout(GEOMETRY, limit_bytes=8 * SLAB)
            assert lane.ensure(12)
            assert lane.kv.allocator.alloc(5) is not None
            yield path


def test_top_shows_who_has_which_slab(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", path, "--once"]) == 0
    out = capsys.readouterr().out
    assert "SSrrr" in out.replace("\n", "")
    for word in ("serving", "rollout", "16 slabs", "leaving"):
        assert word in out


def test_json_has_the_same_numbers(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", path, "--json"]) == 0
    moment = json.loads(capsys.readouterr().out)
    assert moment["strip"] == "SSrrr" + 11 * "."
    assert moment["free"] == 11
    serving, rollout = moment["partitions"]
    assert (serving["name"], serving["held"], serving["reserve"]) == ("serving", 2, 2)
    assert (rollout["name"], rollout["lent"], rollout["leases"]) == ("rollout", 3, 1)


@pytest.mark.parametrize("name", ["nothing.sock", "x" * 200])
def test_no_device_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path / name), "--once"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("rose: ")
