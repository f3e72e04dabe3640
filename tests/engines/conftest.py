"""The two models, made once: they are the same in every test."""

import pytest
import torch

from rose.engines.transformers import Model, load_model


@pytest.fixture(scope="session")
def models() -> tuple[Model, Model]:
    """Return serving's model and the rollout's."""
    torch.set_num_threads(1)
    return load_model("tiny-qwen2", seed=1), load_model("tiny-qwen3", seed=2)
