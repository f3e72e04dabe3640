"""Small random models whose layers keep different tokens."""

from collections.abc import Callable

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rose.engines.transformers import Model

VOCABULARY = 4096
WINDOW = 24  # neither a multiple of a page nor longer than the prompts of tests

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "sliding_window": WINDOW,
    "attn_implementation": "sdpa",
}


def _gemma3() -> Model:
    """Five layers of six look back over the window."""
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZES,
            num_hidden_layers=6,
            num_key_value_heads=2,
            head_dim=64,
            layer_types=["sliding_attention"] * 5 + ["full_attention"],
        )
    )


def _gemma2() -> Model:
    """Every other layer does; its logits are capped, which sdpa cannot."""
    eager = {**SIZES, "attn_implementation": "eager"}
    return Gemma2ForCausalLM(
        Gemma2Config(**eager, num_hidden_layers=4, num_key_value_heads=2, head_dim=64)
    )


def _qwen2() -> Model:
    """The last three layers of four do."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            **SIZES,
            num_hidden_layers=4,
            num_key_value_heads=4,
            use_sliding_window=True,
            max_window_layers=1,
        )
    )


MODELS: dict[str, Callable[[], Model]] = {"gemma3": _gemma3, "gemma2": _gemma2, "qwen2": _qwen2}


def windowed(name: str, *, seed: int) -> Model:
    torch.manual_seed(seed)
    return MODELS[name]().float().eval()
