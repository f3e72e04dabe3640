"""The presets of the demo with a fraction of their arithmetic: a step takes a quarter of the time.

Layers and KV are those of the presets, so slabs hold as many tokens. The weights are twice as wide
spread, as the hidden size is a quarter: attention counts for as much in what a model says.
"""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rose.engines.transformers import Model

_HIDDEN = 64


def _shape(layers: int, heads: int, head: int, vocabulary: int) -> dict[str, int | float | str]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": _HIDDEN,
        "intermediate_size": _HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head,
        "initializer_range": 0.04,
        "attn_implementation": "sdpa",
    }


def thin_qwen2(*, seed: int) -> Model:
    """Build what stands for tiny-qwen2."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**_shape(6, 8, 32, 4096))).float().eval()


def thin_qwen3(*, seed: int) -> Model:
    """Build what stands for tiny-qwen3."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**_shape(8, 6, 64, 4096))).float().eval()


def thin_policy(*, seed: int) -> Model:
    """Build what stands for tiny-policy."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**_shape(6, 4, 64, 128))).float().eval()
