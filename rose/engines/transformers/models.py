"""The models of the demo: small presets with random weights, or a local checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rose.errors import InvalidArgument, Unavailable

_VOCABULARY: Final = 4096
_CHARACTERS: Final = 128  # vocabulary of the texts in the demo's environments
_HEAD: Final = 64


def _tiny_qwen2() -> PreTrainedModel:
    """Build 6 layers of width 256.

    A serving step takes 2-4 ms on one core, and each token has 12 KiB of KV.
    """
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=_VOCABULARY,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=8,
            attn_implementation="sdpa",
        )
    )


def _qwen3(*, layers: int, heads: int, vocabulary: int = _VOCABULARY) -> PreTrainedModel:
    """Build a Qwen3 model with heads of size 64 and an MLP four times as wide as the model."""
    hidden = heads * _HEAD
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=_HEAD,
            attn_implementation="sdpa",
        )
    )


def _tiny_qwen3() -> PreTrainedModel:
    """Build 8 layers of width 384.

    A rollout step takes 10-20 ms on one core, and each token has 24 KiB of KV.
    """
    return _qwen3(layers=8, heads=6)


def _tiny_policy() -> PreTrainedModel:
    """Build the demo's policy: 6 layers of width 256 over characters, 6 M parameters."""
    return _qwen3(layers=6, heads=4, vocabulary=_CHARACTERS)


def _micro_policy() -> PreTrainedModel:
    """Build a policy that learns in seconds: 2 layers of width 64 over characters."""
    return _qwen3(layers=2, heads=1, vocabulary=_CHARACTERS)


PRESETS: Final[dict[str, Callable[[], PreTrainedModel]]] = {
    "tiny-qwen2": _tiny_qwen2,
    "tiny-qwen3": _tiny_qwen3,
    "tiny-policy": _tiny_policy,
    "micro-policy": _micro_policy,
}


def load_model(name: str, *, seed: int, device: str = "cpu") -> PreTrainedModel:
    """Return a causal language model in fp32, in evaluation mode.

    Args:
        name: a preset, or a directory with `config.json` and weights; nothing is downloaded.
        seed: seed of a preset's random weights, which are the same on every device.
        device: device of the weights.

    Raises:
        InvalidArgument: the preset or directory is unknown, or transformers cannot load the model
            or batch its requests.
        Unavailable: torch has no such device.
    """
    if device != "cpu" and not torch.cuda.is_available():
        raise Unavailable(
            f"torch {torch.__version__} cannot use '{device}': install a torch built for CUDA"
        )
    if name in PRESETS:
        torch.manual_seed(seed)
        return PRESETS[name]().float().eval().to(device)
    path = Path(name)
    if not (path / "config.json").is_file():
        raise InvalidArgument(
            f"unknown model '{name}': give one of {', '.join(PRESETS)} "
            "or a directory with config.json"
        )
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        model: PreTrainedModel
        model, report = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
        model.set_attn_implementation("sdpa")
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidArgument(f"the model in '{name}' cannot be loaded: {reason}") from error
    if report["missing_keys"]:
        raise InvalidArgument(
            f"the model in '{name}' has no weights for {min(report['missing_keys'])} and "
            f"{len(report['missing_keys']) - 1} others: give a complete causal language model"
        )
    if not model._supports_attention_backend or model._is_stateful:
        raise InvalidArgument(
            f"the model in '{name}', a {type(model).__name__}, cannot be batched continuously: "
            "give one whose layers all use the attention interface of transformers"
        )
    return model.eval().to(device)
