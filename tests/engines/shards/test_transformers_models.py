"""Models of transformers: their state dict is a map, and a loader that loads it is traced to it."""

import pytest
import torch

pytest.importorskip("transformers")

from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rose.engines.shards.plain import shard_map_of
from rose.engines.shards.trace import trace_loader
from tests.engines.shards.poured import bytes_of, pour, random_like, specs_of

SIZES = {
    "vocab_size": 24,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def qwen2(*, is_tied: bool):
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=is_tied)).bfloat16()


def qwen3(*, is_tied: bool):
    config = Qwen3Config(**SIZES, head_dim=4, tie_word_embeddings=is_tied)
    return Qwen3ForCausalLM(config).bfloat16()


def loader_of(model):
    return lambda weights: model.load_state_dict(dict(weights), strict=False)


@pytest.mark.parametrize("make", [qwen2, qwen3])
@pytest.mark.parametrize("is_tied", [False, True])
def test_state_dict_and_its_loader_are_the_same_map(make, is_tied) -> None:
    torch.manual_seed(0)
    model = make(is_tied=is_tied)
    named = model.state_dict()
    before = bytes_of(model)
    traced = trace_loader(model, loader_of(model), specs_of(named), rank=2)
    assert all(torch.equal(one, before[name]) for name, one in bytes_of(model).items())
    mapped = shard_map_of(named, rank=2)
    assert not traced.shards.computed
    assert set(traced.shards.pieces) == set(mapped.pieces)
    assert traced.shards.tensors == mapped.tensors
    places = {one.tensor: one.view for one in mapped.pieces}
    tied = places["lm_head.weight"] == places["model.embed_tokens.weight"]
    assert tied == is_tied

    tensors = random_like(specs_of(named), seed=4)
    if is_tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    pour(traced.shards, tensors, model, rank=2)
    assert all(torch.equal(one, tensors[name]) for name, one in model.state_dict().items())


def test_checkpoint_in_another_dtype_is_computed_and_says_so() -> None:
    model = qwen3(is_tied=True).float()
    specs = specs_of({name: one.bfloat16() for name, one in model.state_dict().items()})
    traced = trace_loader(model, loader_of(model), specs)
    assert set(traced.shards.computed.values()) == {"converted from bfloat16 to float32"}
    assert not traced.shards.pieces
    assert traced.ends["model.norm.weight"] == ("model.norm.weight",)
