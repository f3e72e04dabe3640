"""vLLM's own models and loaders: traced on every tensor parallel rank, and loaded for the truth."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from bench.placeholders import placeholders
from bench.vllm_wheel import importable, load
from rose.engines.shards import MegatronModel, megatron_layout, parameters_of, trace_loader
from rose.errors import Unavailable
from tests.engines.shards.poured import bytes_of, pour, random_like, storage_bytes
from tests.engines.vllm.rig import Model

pytestmark = pytest.mark.peer

SIZES = {"hidden": 16, "heads": 4, "kv_heads": 2, "head": 8, "ffn": 8, "vocabulary": 200}
FAMILIES = {
    # Heads of Qwen2 are as wide as the residual stream together.
    "qwen2": (
        "Qwen2ForCausalLM",
        MegatronModel((2,), **(SIZES | {"hidden": 32}), has_qkv_bias=True, dtype="float32"),
    ),
    "qwen3": ("Qwen3ForCausalLM", MegatronModel((2,), **SIZES, has_qk_norm=True, dtype="float32")),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        MegatronModel((2,), **SIZES, has_qk_norm=True, experts=4, dtype="float32"),
    ),
}


class NoAttention(nn.Module):
    """Attention has no weights, and asks for a back end of the machine."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__()


def group(rank: int, size: int) -> SimpleNamespace:
    """Return what models ask of a group of ranks when they are made."""
    one = SimpleNamespace(
        rank_in_group=rank,
        world_size=size,
        is_first_rank=rank == 0,
        is_last_rank=rank == size - 1,
        rank=lambda: rank,
        size=lambda: size,
    )
    one.device_group = one
    return one


def config_of(kind: str, folder: Path):
    model = FAMILIES[kind][1]
    folder.mkdir(exist_ok=True)
    config = {
        "architectures": ["RoseTestModel"],
        "model_type": kind,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "moe_intermediate_size": model.ffn,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head,
        "num_hidden_layers": sum(model.stage_layers),
        "num_experts": model.experts,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": model.vocabulary,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    vllm = load("vllm.config")
    return vllm.VllmConfig(
        model_config=vllm.ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", seed=0
        ),
        cache_config=vllm.CacheConfig(block_size=16),
        device_config=vllm.DeviceConfig(device="cpu"),
    )


@pytest.fixture(params=[(kind, rank) for kind in FAMILIES for rank in range(2)], ids=str)
def built(request, tmp_path) -> Iterator[tuple[nn.Module, dict]]:
    """Return a model of one of two ranks, and the specs of its checkpoint."""
    kind, rank = request.param
    name, model = FAMILIES[kind]
    specs = megatron_layout(model).shards.tensors
    with ExitStack() as stack:
        stack.enter_context(placeholders(frozenset({"einops"})))
        try:
            module = load(f"vllm.model_executor.models.{kind}")
            states = load("vllm.distributed.parallel_state")
            experts = load("vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method")
        except Unavailable as reason:
            pytest.skip(str(reason))
        stack.enter_context(importable())
        load("vllm.model_executor.models").ModelRegistry.register_model("RoseTestModel", Model)
        config = config_of(kind, tmp_path / "model")
        stack.enter_context(load("vllm.config").set_current_vllm_config(config))
        for of in ("_TP", "_PP", "_DP", "_EP", "_PCP"):
            one = group(rank, 2) if of == "_TP" else group(0, 1)
            stack.enter_context(mock.patch.object(states, of, one, create=True))
        backend = (experts.UnquantizedMoeBackend.TRITON, None)
        stack.enter_context(
            mock.patch.object(experts, "select_unquantized_moe_backend", return_value=backend)
        )
        stack.enter_context(mock.patch.object(module, "Attention", NoAttention))
        yield getattr(module, name)(vllm_config=config), specs


def test_map_of_a_loader_of_vllm_is_what_it_loads(built) -> None:
    model, specs = built
    for one in parameters_of(model).values():
        one.data.zero_()
    before = bytes_of(model)
    traced = trace_loader(model, model.load_weights, specs.values())
    assert traced.shards.computed == {}
    assert traced.skipped == ()
    assert all(torch.equal(one, before[name]) for name, one in bytes_of(model).items())
    tensors = random_like(specs.values(), seed=5)
    model.load_weights(tensors.items())
    loaded = bytes_of(model)
    for name, one in parameters_of(model).items():
        storage_bytes(one).copy_(before[name])
    pour(traced.shards, tensors, model)
    poured = bytes_of(model)
    assert all(torch.equal(one, poured[name]) for name, one in loaded.items())
    assert any("qkv_proj" in piece.view.parameter for piece in traced.shards.pieces)
