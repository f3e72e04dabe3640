"""Devices whose clock of evidence has run: every bound is known, and no deadline is near."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rose
from rose.executor import KVGeometry
from rose.slo.verify import verify_log
from tests.executor.conftest import CALM
from tests.known_model import confirm

SLAB = 2 << 20
LONG_S = 20.0
LONG_MS = LONG_S * 1000
SERVING_KV = KVGeometry(layers=2, block_tokens=16, bytes_per_token=8192)  # 16 blocks in a slab
ROLLOUT_KV = KVGeometry(layers=4, block_tokens=8, bytes_per_token=16384)  # 16 blocks in a slab
SLO = rose.SLO(ttft_ms=20_000, tpot_ms=1000)
CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "torch_dtype": "float32",
}


class Rig:
    """A device with both engines: 9 slabs, 3 of them reserved, which is what serving could need."""

    def __init__(self, log_path: Path, *, slabs: int = 9, reserve_slabs: int = 3, **knobs) -> None:
        self.log_path = log_path
        self.device = rose.open(
            "cpu",
            slo=SLO,
            pool_bytes=(slabs + 2) * SLAB,
            log_path=log_path,
            policy=rose.Policy(**{**CALM, **knobs}),
        )
        self.serving = self.device.serving(
            SERVING_KV, reserve_bytes=reserve_slabs * SLAB, step_tokens=64, request_tokens=256
        )
        self.borrower = self.device.borrower(ROLLOUT_KV)
        confirm(self.device.executor._parts.model, 64)
        self.threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def sequence(self, tokens: int) -> rose.Sequence:
        sequence = self.borrower.sequence()
        sequence.grow(tokens)
        return sequence

    def compute(self, *sequences: rose.Sequence) -> None:
        for step in self.borrower.steps(sequences, timeout_ms=LONG_MS):
            with step:
                step.gate()
        assert all(one.computed == one.tokens for one in sequences)

    def used(self) -> tuple[int, int]:
        """Blocks in use: serving's, the borrower's."""
        return tuple(one.kv.allocator.used_blocks for one in (self.serving, self.borrower))

    def close(self) -> None:
        self.device.close()
        for thread in self.threads:
            thread.join(LONG_S)
            assert not thread.is_alive()
        self.device.executor.arbiter.check_invariants()
        verification = verify_log(self.log_path)
        assert verification.violations == []
        assert self.device.gave_back is None


@pytest.fixture
def open_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def open_one(**knobs) -> Rig:
        rigs.append(Rig(tmp_path / f"{len(rigs)}.log", **knobs))
        return rigs[-1]

    yield open_one
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(open_rig) -> Rig:
    return open_rig()
