"""A borrower with sliding windows generates the tokens of stock transformers."""

from collections.abc import Iterator

import pytest

from rose.engines.transformers import EngineConfig, Model, stock_engine
from tests.engines.pair import Client, Pair
from tests.engines.stepper import Stepper
from tests.engines.windowed import MODELS, WINDOW, windowed
from tests.pins import Pins

LENGTHS = [(5, 40), (60, 30), (23, 30), (150, 20)]  # prompts and answers, around the window


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(name: str) -> Model:
    """The same weights without an engine, which would change how it computes attention."""
    return windowed(name, seed=3)


@pytest.fixture
def pair(models: tuple[Model, Model], name: str) -> Iterator[Pair]:
    made = Pair((models[0], windowed(name, seed=3)))
    yield made
    made.rollout.stop()
    made.serving.stop()
    made.device.close()
    assert made.device.gave_back is None
    made.device.arbiter.check_invariants()


@pytest.fixture
def stepper(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Stepper:
    return Stepper(pair, monkeypatch)


def generated_by_stock(
    model: Model, prompts: dict[str, tuple[list[int], int]]
) -> dict[str, list[int]]:
    engine = stock_engine(model, EngineConfig(max_batch_tokens=64), cache_blocks=256)
    client = Client(engine, "rollout", 5)
    engine.start()
    try:
        for prompt, new_tokens in prompts.values():
            client.send(prompt=prompt, new_tokens=new_tokens)
        client.wait()
    finally:
        engine.stop()
    return {name: output.generated_tokens for name, output in client.answers.items()}


def test_generates_the_tokens_of_stock(
    pair: Pair, name: str, model: Model, poisoned_on_hand_out: None
) -> None:
    client = Client(pair.rollout, "rollout", 5)
    with pair:
        for prompt_tokens, new_tokens in LENGTHS:
            client.send(prompt_tokens=prompt_tokens, new_tokens=new_tokens)
        client.wait()
    assert client.errors() == []
    assert client.wrong(model) == []
    generated = {name: output.generated_tokens for name, output in client.answers.items()}
    assert generated == generated_by_stock(windowed(name, seed=3), client.asked)


def test_a_window_holds_only_the_pages_that_it_reaches(stepper: Stepper, model: Model) -> None:
    stepper.client.send(prompt_tokens=200, new_tokens=60)
    for _ in range(30):
        stepper.step()
    cache = stepper.processor.cache
    held = {
        one.layer_type: len(next(iter(one.block_table.values())))
        for one in cache.cache_allocators.values()
    }
    page = EngineConfig().page_tokens
    assert held["sliding_attention"] == -(-WINDOW // page)
    assert held["full_attention"] >= 200 // page
    stepper.finish()
    assert stepper.client.wrong(model) == []


@pytest.mark.parametrize("gate", [3])
def test_aborted_steps_are_rolled_back(stepper: Stepper, model: Model, gate: int) -> None:
    stepper.client.send(prompt_tokens=150, new_tokens=6)
    stepper.client.send(prompt_tokens=20, new_tokens=30)
    for _ in range(4):
        stepper.step(abort_at=gate)
        stepper.step()
    stepper.finish()
    assert stepper.client.wrong(model) == []


def test_a_step_pins_the_slabs_of_its_request(stepper: Stepper) -> None:
    pins = Pins(stepper.pair.rollout_lane)
    request = stepper.client.send(prompt_tokens=60, new_tokens=4)
    stepper.prepare()
    assert pins.slabs == stepper.processor.cache.slabs_of(request) != set()
    stepper.processor._generation_step(stepper.engine.manager.model)
    stepper.processor.update_batch()
    stepper.finish()
