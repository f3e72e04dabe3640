"""The cost of a step follows from the model's shape, matrix by matrix."""

import pytest

from rose.errors import InvalidArgument
from rose.executor.model_cost import model_cost
from rose.memory.model_shape import KVDtype
from rose.memory.model_weights import WeightDtype, parameters, weight_bytes
from rose.memory.presets import find_model, preset_names

BF16_KV = KVDtype(2)


def test_a_dense_model_reads_all_but_its_embedding_once_a_step() -> None:
    shape = find_model("Llama-3.1-8B")
    cost = model_cost(shape, kv=BF16_KV)
    embedding = 128_256 * 4096
    assert cost.weight_bytes == 2 * (8_030_261_248 - embedding)
    assert cost.token_flops == 2 * (8_030_261_248 - embedding)
    assert cost.context_token_bytes == 2 * 32 * 8 * 128 * 2
    assert cost.pair_flops == 2 * 2 * 32 * 4096


def test_a_tied_embedding_is_the_output_matrix_and_is_read() -> None:
    shape = find_model("Qwen2.5-0.5B")
    cost = model_cost(shape, kv=BF16_KV)
    assert cost.weight_bytes == weight_bytes(shape)
    assert cost.token_flops == 2 * parameters(shape)


def test_a_token_of_a_mixture_uses_some_experts_and_a_step_reads_all() -> None:
    shape = find_model("Qwen3-30B-A3B")
    cost = model_cost(shape, kv=BF16_KV)
    # 3.3 billion active parameters, as published, without the embedding of 0.3 billion.
    assert cost.token_flops / 2 == pytest.approx(3.04e9, rel=0.02)
    assert cost.weight_bytes > 0.98 * weight_bytes(shape)


def test_devices_that_share_a_model_share_its_cost() -> None:
    shape = find_model("Llama-3.1-8B")
    one, four = (model_cost(shape, kv=BF16_KV, tp=tp) for tp in (1, 4))
    assert four.token_flops == one.token_flops / 4
    assert four.pair_flops == one.pair_flops / 4
    assert four.context_token_bytes == one.context_token_bytes / 4
    # Norms are not divided.
    assert four.weight_bytes == pytest.approx(one.weight_bytes / 4, rel=1e-3)


def test_smaller_elements_are_fewer_bytes() -> None:
    shape = find_model("Llama-3.1-8B")
    plain = model_cost(shape, kv=BF16_KV)
    small = model_cost(shape, kv=KVDtype(1), dtype=WeightDtype.FP8)
    assert small.context_token_bytes == plain.context_token_bytes / 2
    assert plain.weight_bytes / 2 < small.weight_bytes < 0.55 * plain.weight_bytes
    assert small.token_flops == plain.token_flops


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_a_cost(name: str) -> None:
    cost = model_cost(find_model(name), kv=BF16_KV)
    assert min(cost.weight_bytes, cost.token_flops, cost.context_token_bytes, cost.pair_flops) > 0
    assert cost.token_flops <= cost.weight_bytes * 2  # two a weight, of one or two bytes each


def test_a_model_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="3 devices"):
        model_cost(find_model("Llama-3.1-8B"), kv=BF16_KV, tp=3)
