"""Bytes of an update are those of the planner, and its time is theirs over the links' rates."""

import pytest

from rose.memory.model_weights import parameters, weight_bytes
from rose.memory.presets import find_model
from rose_lab.sim.scenario.parts import Network
from rose_lab.sim.scenario.updates import UpdateScheme, update_elements, update_time

MODELS = [
    ("Qwen3-8B", 1, 4),
    ("Qwen3-32B", 4, 4),
    ("Llama-3.1-70B", 16, 2),
    ("Qwen3-30B-A3B", 2, 4),
]


@pytest.mark.parametrize(("model", "tp", "trainer_tp"), MODELS)
@pytest.mark.parametrize("engines", [1, 5])
def test_with_a_relay_each_element_crosses_once_and_fans_out_to_each_engine(
    model: str, tp: int, trainer_tp: int, engines: int
) -> None:
    shape = find_model(model)
    moved = update_elements(model, tp=tp, engines=engines, trainer_tp=trainer_tp, relays=1)
    assert moved.crossing == parameters(shape)
    assert moved.received == weight_bytes(shape, tp=tp) // 2
    # Norms, and KV heads beyond those that there are, go to several GPUs of an engine.
    assert moved.relayed >= engines * parameters(shape)
    assert moved.relayed == engines * tp * moved.received


def test_without_a_relay_each_engine_has_its_own_crossing() -> None:
    one = update_elements("Qwen3-8B", tp=1, engines=1, trainer_tp=4, relays=0)
    many = update_elements("Qwen3-8B", tp=1, engines=7, trainer_tp=4, relays=0)
    assert many.crossing == 7 * one.crossing == 7 * parameters(find_model("Qwen3-8B"))
    assert many.relayed == 0


def time_of(scheme: UpdateScheme, *, link: float = 10, is_far: bool = True, share: float = 0.03):
    return update_time(
        "Qwen3-8B",
        gpu="H800",
        tp=1,
        engines=16,
        trainer_tp=4,
        is_far=is_far,
        network=Network(link_gbit_per_s=link, changed_share=share),
        scheme=scheme,
    )


def test_a_slow_link_decides_and_its_time_is_worked_out_by_hand() -> None:
    """8.19 G elements, 3 % of them changed, 1.05 B each, over 10 Gb/s: 206 ms."""
    elements = parameters(find_model("Qwen3-8B"))
    by_hand_ms = 1000 * elements * 0.03 * 1.05 / (10e9 / 8)
    assert time_of(UpdateScheme.DELTA).update_ms == pytest.approx(by_hand_ms)
    assert time_of(UpdateScheme.COO).update_ms == pytest.approx(by_hand_ms * 6 / 1.05)
    dense = time_of(UpdateScheme.DENSE)
    whole_ms = 1000 * 16 * elements * 2 / (10e9 / 8)
    assert dense.update_ms + dense.pause_ms == pytest.approx(whole_ms)


def test_a_fast_link_leaves_the_fan_out_of_the_relay() -> None:
    near = time_of(UpdateScheme.DELTA, link=100_000).update_ms
    by_hand_ms = 1000 * 16 * parameters(find_model("Qwen3-8B")) * 0.03 * 1.05 / (400e9 / 8)
    assert near == pytest.approx(by_hand_ms, rel=1e-3)


def test_pauses_are_milliseconds_for_a_delta_and_a_load_for_dense_weights() -> None:
    delta, coo, dense = (time_of(scheme) for scheme in UpdateScheme)
    # 15 to 17 GB of weights, 39 % of whose sectors are touched, at 2.4 TB/s.
    assert delta.pause_ms == pytest.approx(12, abs=1)
    assert coo.pause_ms == 1000
    assert dense.pause_ms == pytest.approx(328, abs=2)  # 16.4 GB at 400 Gb/s


def test_beside_the_trainer_no_link_is_crossed() -> None:
    by_hand_ms = 1000 * parameters(find_model("Qwen3-8B")) * 0.03 * 1.05 / (400e9 / 8)
    for link in (1, 100):
        near = time_of(UpdateScheme.DELTA, link=link, is_far=False)
        assert near.update_ms == pytest.approx(by_hand_ms)


def test_no_delta_is_larger_than_the_weights() -> None:
    coo = time_of(UpdateScheme.COO, share=1.0)
    dense_ms = 1000 * parameters(find_model("Qwen3-8B")) * 2 / (10e9 / 8)
    assert coo.update_ms == pytest.approx(dense_ms)
