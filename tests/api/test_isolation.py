"""`rose.open(isolation=)`: what a borrower that attached by `rose.borrow` finds in lent memory."""

import subprocess
import sys
from pathlib import Path

import pytest

import rose
from rose.memory import ISOLATIONS, Isolation
from tests.api.conftest import LONG_S, ROLLOUT_KV, SERVING_KV, SLAB, SLO
from tests.executor.conftest import CALM
from tests.known_model import confirm

OLD_BYTE = 0x5A
# Runs one step on a lent block, and prints the bytes that it finds there before it writes.
BORROWER = """
import sys
import rose
from rose.executor import KVGeometry

with rose.borrow(sys.argv[1], KVGeometry(*map(int, sys.argv[2:]))) as borrower:
    sequence = borrower.sequence()
    sequence.grow(16)
    for step in borrower.steps([sequence], timeout_ms=20000):
        with step:
            step.gate()
            block = borrower.kv.views()[0][sequence.blocks[0]]
            print(sorted(set(block.tolist())))
            block[:] = 7
    sequence.close()
"""


@pytest.mark.parametrize(("isolation", "found"), [("shared", [OLD_BYTE]), ("mapped", [0])])
def test_a_borrower_of_another_process_runs_steps(
    tmp_path: Path, isolation: Isolation, found: list[int]
) -> None:
    path = tmp_path / "device.sock"
    with rose.open(
        "cpu", slo=SLO, pool_bytes=11 * SLAB, isolation=isolation, policy=rose.Policy(**CALM)
    ) as device:
        device.serving(SERVING_KV, reserve_bytes=3 * SLAB, step_tokens=64, request_tokens=256)
        confirm(device.executor._parts.model, 64)
        device.executor.arbiter.pool_view()[:] = OLD_BYTE
        device.listen(path)
        geometry = (ROLLOUT_KV.layers, ROLLOUT_KV.block_tokens, ROLLOUT_KV.bytes_per_token)
        done = subprocess.run(
            [sys.executable, "-c", BORROWER, str(path), *map(str, geometry)],
            capture_output=True,
            text=True,
            timeout=LONG_S * 3,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, f"{found}\n"), done.stderr
        assert device.gave_back is None


def test_an_unknown_isolation_is_refused_when_the_device_is_opened() -> None:
    with pytest.raises(rose.InvalidArgument, match="must be 'shared' or 'mapped', got 'all'"):
        rose.open("cpu", slo=SLO, isolation="all")  # type: ignore[arg-type]


def test_mapped_loans_need_a_borrower_in_another_process() -> None:
    with rose.open("cpu", slo=SLO, pool_bytes=11 * SLAB, isolation=ISOLATIONS[1]) as device:  # type: ignore[arg-type]
        device.serving(SERVING_KV, reserve_bytes=3 * SLAB, step_tokens=64, request_tokens=256)
        with pytest.raises(rose.InvalidArgument, match="needs a borrower in another process"):
            device.borrower(ROLLOUT_KV)
