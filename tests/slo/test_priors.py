"""A prior is what the device's data sheet and the model's shape say, for any name of a driver."""

import itertools
import json
import math
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import LatencyModel
from rose.errors import InvalidArgument
from rose.slo import Policy
from rose.slo.latency_file import new_latency_model
from rose.slo.prior import ModelCost, Roofline, find_roofline, prior_ms

# Eight billion parameters in bf16, 32 layers of 8 KV heads of 128.
LLAMA_8B = ModelCost(
    weight_bytes=15e9, token_flops=15e9, context_token_bytes=131_072, pair_flops=524_288
)
TABLE = json.loads(resources.files("rose.slo").joinpath("priors.json").read_text())
costs = st.builds(ModelCost, *(st.floats(0, 1e15) for _ in range(4)))
rooflines = st.builds(
    Roofline,
    device=st.just("it"),
    flops_per_s=st.floats(1e9, 1e16),
    bytes_per_s=st.floats(1e9, 1e14),
    launch_ms=st.floats(0, 10),
)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80 GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40 GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40 GB"),
        ("NVIDIA L40S", "L40S"),
        ("cpu", "CPU"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "CPU"),
        ("AMD EPYC 9B14 96-Core Processor", "CPU"),
    ],
)
def test_devices_are_known_by_the_names_their_drivers_give(name: str, device: str) -> None:
    found = find_roofline(name)
    assert (found.device, found.notice) == (device, None)
    assert device in {known["device"] for known in TABLE}


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GH200 480GB", "NVIDIA L40", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "AMD MI300X", ""],
)
def test_an_unknown_device_is_as_slow_as_the_slowest_gpu_and_says_so(name: str) -> None:
    found = find_roofline(name)
    gpus = [find_roofline(known["names"][0]) for known in TABLE if known["is_gpu"]]
    assert found.flops_per_s == min(gpu.flops_per_s for gpu in gpus)
    assert found.bytes_per_s == min(gpu.bytes_per_s for gpu in gpus)
    assert found.notice is not None
    assert f"'{name}'" in found.notice
    guess = prior_ms(name, LLAMA_8B)
    for gpu in gpus:
        assert all(a >= b for a, b in zip(guess, gpu.prior_ms(LLAMA_8B), strict=True))


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry["device"])
def test_each_figure_of_the_table_has_a_source(entry) -> None:
    figures = {name: figure for name, figure in entry.items() if isinstance(figure, dict)}
    assert set(figures) == {
        "bf16_flops_per_s",
        "memory_bytes_per_s",
        "memory_bytes",
        "launch_ms",
        "flops_share",
        "bytes_share",
    }
    for figure in figures.values():
        assert set(figure) == {"value", "source"}
        assert math.isfinite(figure["value"])
        assert figure["value"] > 0
        assert figure["source"]
    assert entry["flops_share"]["value"] < 1
    assert entry["bytes_share"]["value"] < 1


@pytest.mark.parametrize("device", [known["device"] for known in TABLE])
def test_a_prior_starts_a_model(device: str) -> None:
    name = next(entry["names"][0] for entry in TABLE if entry["device"] == device)
    prior = prior_ms(name, LLAMA_8B)
    assert len(prior) == 5
    model = new_latency_model(Policy(), step_tokens=512, prior_ms=prior)
    step = {"decode_sequences": 8.0, "context_tokens": 9000.0, "prefill_tokens": 256.0}
    terms = (1.0, 8.0, 9000.0, 256.0, 256.0 * 9000.0)
    expected = sum(one * term for one, term in zip(prior, terms, strict=True))
    assert model.forecast(**step).predicted_ms == pytest.approx(expected)


@given(
    device=rooflines,
    model=costs,
    counts=st.tuples(st.integers(0, 512), st.integers(0, 10**6), st.integers(0, 8192)),
)
def test_a_prior_lies_between_the_roofline_and_twice_that(device, model, counts) -> None:
    sequences, context, prefill = counts
    terms = (1, sequences, context, prefill, prefill * context)
    together = sum(a * b for a, b in zip(device.prior_ms(model), terms, strict=True))
    flops = (sequences + prefill) * model.token_flops + prefill * context * model.pair_flops
    moved = model.weight_bytes + context * model.context_token_bytes
    roofline = 1e3 * max(flops / device.flops_per_s, moved / device.bytes_per_s)
    above = together - device.launch_ms
    slack = 1e-9 * together  # of the arithmetic
    assert roofline - slack <= above <= 2 * roofline + slack


@pytest.mark.parametrize(
    ("index", "bad"), list(itertools.product(range(4), [math.nan, math.inf, -1.0]))
)
def test_a_cost_without_a_meaning_is_refused(index: int, bad: float) -> None:
    values = [1.0, 1.0, 1.0, 1.0]
    values[index] = bad
    with pytest.raises(InvalidArgument, match="must be finite"):
        ModelCost(*values)


def test_the_prior_of_the_policy_is_used_where_none_is_given() -> None:
    model = new_latency_model(Policy(latency_prior_ms=(7.0, 0.0, 0.0, 0.0, 0.0)), step_tokens=512)
    assert isinstance(model, LatencyModel)
    step = {"decode_sequences": 1.0, "context_tokens": 1.0, "prefill_tokens": 0.0}
    assert model.forecast(**step).predicted_ms == 7.0
