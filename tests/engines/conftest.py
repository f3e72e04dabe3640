"""The two models, made once: they are the same in every test."""

import pytest
import torch

from rose.engines.transformers import Model
from rose.engines.transformers.pool import SlabPool
from tests.engines.thin import thin_qwen2, thin_qwen3

POISON = 0xFF  # NaN in every float type


@pytest.fixture(scope="session")
def models() -> tuple[Model, Model]:
    """Return serving's model and the rollout's."""
    torch.set_num_threads(1)
    return thin_qwen2(seed=1), thin_qwen3(seed=2)


@pytest.fixture
def poisoned_on_hand_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill every block with NaN when its new owner gets it, as a slab that changed hands would be.

    If the old owner still read it, or the new one read before it wrote, tokens would change.
    """
    stock = SlabPool._take

    def take(pool: SlabPool, index: int, count: int) -> bool:
        before = set(pool._free_blocks[index].trees)
        is_taken = stock(pool, index, count)
        space = pool.lane.kv
        size = space.geometry.block_bytes
        for block in set(pool._free_blocks[index].trees) - before:
            space.flat()[block * size : (block + 1) * size] = POISON
        return is_taken

    monkeypatch.setattr(SlabPool, "_take", take)
