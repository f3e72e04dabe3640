"""A trainer under FSDP2 and an engine with fused weights, whose ranks are killed at random."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("kills", "limit_s"),
    [
        pytest.param(3, 280, marks=pytest.mark.timeout(300)),
        pytest.param(200, 3500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_all_ranks_end_at_one_published_digest(tmp_path: Path, kills: int, limit_s: int) -> None:
    program = [sys.executable, "-m", "tests.engines.shards.killed", str(tmp_path), str(kills), "1"]
    world = subprocess.Popen(program, cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True)
    try:
        said = world.communicate(timeout=limit_s)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(world.pid, signal.SIGKILL)
        world.wait()
    assert world.returncode == 0, said.decode()
    results = [
        json.loads(line)
        for rank in range(2)
        for line in (tmp_path / f"result{rank}").read_text().splitlines()
    ]
    assert len({digest for digest, _ in results}) == 1
    assert all(is_loaded for _, is_loaded in results)
