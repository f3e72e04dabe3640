"""Step times come from data sheets and shapes, and every figure can be worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.memory.presets import find_model
from rose.units import GIB
from rose_lab.sim.cluster.lending_devices import (
    StepCost,
    kv_tokens,
    pool_bytes,
    roofline_cost,
)

MODELS = ("Qwen3-8B", "Qwen2.5-7B", "Qwen3-32B", "Qwen3-30B-A3B")
GPUS = ("H100", "H800", "A100", "L40S", "H200")

# Worked out by hand. Weights are parameters x 2 bytes, less the embedding (Qwen3-8B: 8.19 G less
# 0.62 G parameters); reading reaches 72 % of the bandwidth, 0.2 ms are a launch; a prompt token is
# 2 FLOP a weight at 45 % (A100 38 %, L40S 32 %) of the peak; KV is 144, 56, 256 and 96 KiB a token.
BY_HAND = [
    # model, GPU, ms of a step, us of a prompt token, ns of a context token
    ("Qwen3-8B", "H100", 0.2 + 15.14 / 3.35 / 0.72, 15.14e3 / 989.4 / 0.45, 147.456 / 2.412),
    ("Qwen3-8B", "H800", 0.2 + 15.14 / 3.35 / 0.72, 15.14e3 / 989.4 / 0.45, 147.456 / 2.412),
    ("Qwen3-8B", "H200", 0.2 + 15.14 / 4.8 / 0.72, 15.14e3 / 989.4 / 0.45, 147.456 / 3.456),
    ("Qwen3-8B", "A100", 0.2 + 15.14 / 2.039 / 0.72, 15.14e3 / 312 / 0.38, 147.456 / 1.468),
    ("Qwen3-8B", "L40S", 0.2 + 15.14 / 0.864 / 0.72, 15.14e3 / 362.05 / 0.32, 147.456 / 0.6221),
    ("Qwen2.5-7B", "H800", 0.2 + 14.14 / 3.35 / 0.72, 14.14e3 / 989.4 / 0.45, 57.344 / 2.412),
    ("Qwen3-32B", "H200", 0.2 + 63.97 / 4.8 / 0.72, 63.97e3 / 989.4 / 0.45, 262.144 / 3.456),
]


@pytest.mark.parametrize(("model", "gpu", "base_ms", "token_us", "context_ns"), BY_HAND)
def test_a_dense_step_costs_what_is_worked_out_by_hand(
    model, gpu, base_ms, token_us, context_ns
) -> None:
    cost = roofline_cost(find_model(model), gpu)
    assert cost.base_ms == pytest.approx(base_ms, rel=2e-3)
    assert 1e3 * cost.prefill_ms == pytest.approx(token_us, rel=2e-3)
    assert 1e6 * cost.context_ms == pytest.approx(context_ns, rel=2e-3)
    assert cost.sequence_ms == pytest.approx(0.004)  # the reading hides 64 sequences' arithmetic


def test_a_larger_batch_wakes_more_experts() -> None:
    """A token reads 3.35 G of 30.5 G weights; 64 sequences wake all but 1.6 % of the experts."""
    shape = find_model("Qwen3-30B-A3B")
    cost = roofline_cost(shape, "H100")
    assert cost.base_ms > 0.2 + 6.13 / 3.35 / 0.72
    full_ms = 0.2 + 60.44 / 3.35 / 0.72
    # A straight line through a curve that bends down: too high at the end, but not by much.
    assert cost.base_ms + 64 * cost.sequence_ms == pytest.approx(full_ms, rel=0.2)
    assert cost.prefill_ms == pytest.approx(2 * 3.04e9 / 989.4e12 / 0.45 * 1e3, rel=0.01)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", MODELS)
def test_more_devices_make_a_step_faster_and_hold_more(model, gpu) -> None:
    shape = find_model(model)
    one, four = roofline_cost(shape, gpu), roofline_cost(shape, gpu, tp=4)
    # A quarter of the reading; the launch stays, and each layer exchanges twice, 10 us each.
    exchange_ms = 2 * 0.01 * shape.layers
    assert four.base_ms == pytest.approx(0.2 + (one.base_ms - 0.2) / 4 + exchange_ms, rel=0.15)
    assert four.base_ms > 0.2 + (one.base_ms - 0.2) / 4 + exchange_ms / 2
    assert four.prefill_ms == pytest.approx(one.prefill_ms / 4)
    assert kv_tokens(shape, gpu, tp=4) > 0


@pytest.mark.parametrize(("model", "kib"), [("Qwen3-8B", 144), ("Qwen2.5-7B", 56)])
def test_kv_fills_what_the_weights_leave(model, kib) -> None:
    """KV a token as in the model's configuration; 80 GB of an H800 is the card's."""
    shape = find_model(model)
    left = pool_bytes("H800", shape)
    assert left < 80e9 - 2 * GIB - 15e9
    assert kv_tokens(shape, "H800") == left // (kib << 10)


def test_both_models_of_the_paper_fit_a_device() -> None:
    """Sixteen trajectories of 32 K do not fit beside them: the paper's cap is no promise."""
    serving, rollout = find_model("Qwen2.5-7B"), find_model("Qwen3-8B")
    both = pool_bytes("H800", rollout, serving) // (144 << 10)
    assert 0 < both < kv_tokens(rollout, "H800")
    assert 16 * 32_768 > both > 8 * 32_768


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="do not fit L40S"):
        kv_tokens(find_model("Qwen3-32B"), "L40S")
    with pytest.raises(InvalidArgument, match="no figures for a GPU 'B300'"):
        roofline_cost(find_model("Qwen3-8B"), "B300")


@given(st.tuples(*[st.floats(0.001, 10)] * 5), st.integers(0, 10_000))
def test_a_rollout_engine_and_a_device_are_the_same_sum(terms, context) -> None:
    cost = StepCost(*terms)
    times = cost.step_times(context_tokens=context)
    per_token_ms = cost.prefill_ms + cost.pair_ms * context
    assert times.prefill_tokens_per_s * per_token_ms == pytest.approx(1000)
    device = cost.device_model(cost, rollout_layers=10, rollout_tokens=100)
    assert device.layers * device.layer_ms == pytest.approx(cost.base_ms + 100 * cost.prefill_ms)
    assert (device.base_ms, device.pair_ms) == (cost.base_ms, cost.pair_ms)
