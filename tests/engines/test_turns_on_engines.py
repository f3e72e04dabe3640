"""What an engine that samples says: the same in any company, on any engine, after any mishap."""

import random
from collections.abc import Iterator

import pytest

from rose.engines.transformers import (
    Engine,
    EngineConfig,
    Model,
    Sampling,
    stock_engine,
)
from rose.errors import InvalidArgument
from tests.engines.pair import Client, Pair
from tests.engines.policies import engine_of, policy, say_alone, true_logprobs
from tests.engines.stepper import Stepper
from tests.engines.thin import thin_policy
from tests.waiting import wait_for

RNG = random.Random(4)
PROMPTS = [[RNG.randrange(128) for _ in range(length)] for length in (3, 16, 40, 90, 17)]


def sampling_of(place: int) -> Sampling:
    return Sampling(seed=900 + place, temperature=(0.7, 1.0, 1.5)[place % 3])


@pytest.fixture(scope="module")
def model() -> Model:
    return policy(seed=5)


@pytest.fixture
def engine(model: Model) -> Iterator[Engine]:
    made = engine_of(model)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def pair(models: tuple[Model, Model]) -> Iterator[Pair]:
    made = Pair((models[0], thin_policy(seed=6)), is_sampling=True)
    yield made
    made.rollout.stop()
    made.serving.stop()
    made.device.close()
    assert made.device.gave_back is None


@pytest.fixture
def stepper(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Stepper:
    return Stepper(pair, monkeypatch)


# ---- a pure function of seed, place and context --------------------------------------------------


def test_request_says_the_same_alone_and_in_a_batch(engine: Engine, model: Model) -> None:
    client = Client(engine, "together", 1)
    names = [
        client.send(prompt=prompt, new_tokens=24, sampling=sampling_of(place))
        for place, prompt in enumerate(PROMPTS)
    ]
    client.wait()
    said = [client.answers[name].generated_tokens for name in names]
    assert said == [
        say_alone(model, prompt, 24, sampling_of(place)) for place, prompt in enumerate(PROMPTS)
    ]
    assert len({token for tokens in said for token in tokens}) > 10  # it is not one word


def test_turn_that_moves_says_the_same(engine: Engine, model: Model) -> None:
    whole = say_alone(model, PROMPTS[2], 30, sampling_of(1))
    for moved_at in (1, 8, 15, 29):
        client = Client(engine, f"moved-{moved_at}", 2)
        name = client.send(
            prompt=PROMPTS[2] + whole[:moved_at], new_tokens=30 - moved_at, sampling=sampling_of(1)
        )
        client.wait()
        assert client.answers[name].generated_tokens == whole[moved_at:]


def test_logprobs_are_those_of_a_forward_pass(engine: Engine, model: Model) -> None:
    client = Client(engine, "logprobs", 3)
    for place, prompt in enumerate(PROMPTS):
        client.send(prompt=prompt, new_tokens=20, sampling=sampling_of(place))
    greedy = client.send(prompt=PROMPTS[0], new_tokens=5, sampling=Sampling(seed=1))
    client.wait()
    for place, prompt in enumerate(PROMPTS):
        output = client.answers[f"logprobs-{place + 1}"]
        truth = true_logprobs(
            model, prompt, output.generated_tokens, sampling_of(place).temperature
        )
        assert output.logprobs == pytest.approx(truth, abs=1e-4)
    assert client.answers[greedy].logprobs == [0.0] * 5


def test_engine_without_sampling_refuses_to_sample(model: Model) -> None:
    plain = stock_engine(model, EngineConfig(max_batch_tokens=64), cache_blocks=16)
    with pytest.raises(InvalidArgument, match="sampling=True"):
        Client(plain, "plain", 4).send(prompt=[1], new_tokens=1, sampling=Sampling())


# ---- mishaps on the borrower ---------------------------------------------------------------------


def undisturbed(model: Model, prompt: list[int], new_tokens: int, sampling: Sampling) -> list[int]:
    return say_alone(model, prompt, new_tokens, sampling)


@pytest.mark.parametrize("gate", [4])
def test_step_that_was_aborted_gives_the_same_token(stepper: Stepper, gate: int) -> None:
    names = [
        stepper.client.send(prompt=prompt, new_tokens=8, sampling=sampling_of(place))
        for place, prompt in enumerate(PROMPTS[:4])
    ]
    while stepper.client.waiting:
        stepper.step(abort_at=gate)
        stepper.step()
    assert stepper.processor.aborted_steps > 5
    for place, name in enumerate(names):
        truth = undisturbed(stepper.pair.rollout_model, PROMPTS[place], 8, sampling_of(place))
        assert stepper.client.answers[name].generated_tokens == truth


@pytest.mark.parametrize("no_cache", [False, True])
def test_preemption_changes_no_token_no_logprob_and_no_stamp(
    stepper: Stepper, no_cache: bool
) -> None:
    name = stepper.client.send(prompt=PROMPTS[2], new_tokens=14, sampling=sampling_of(0))
    for _ in range(4):
        for _ in range(3):
            stepper.step()
        with stepper.processor.lock:
            stepper.processor.scheduler.preempt(stepper.state(name), no_cache=no_cache)
    stepper.finish()
    output = stepper.client.answers[name]
    model = stepper.pair.rollout_model
    assert output.generated_tokens == undisturbed(model, PROMPTS[2], 14, sampling_of(0))
    truth = true_logprobs(model, PROMPTS[2], output.generated_tokens, sampling_of(0).temperature)
    assert output.logprobs == pytest.approx(truth, abs=1e-4)
    assert output.versions == [0] * 14


# ---- ends ----------------------------------------------------------------------------------------


def test_any_of_several_stop_tokens_ends_the_request_and_is_said(
    engine: Engine, model: Model
) -> None:
    whole = say_alone(model, PROMPTS[1], 40, sampling_of(2))
    for place in (0, 5, 20):
        stop = whole[place]
        first = whole.index(stop)
        never = next(token for token in range(128) if token not in whole)
        client = Client(engine, f"stop-{place}", 5)
        name = client.send(
            prompt=PROMPTS[1], new_tokens=40, sampling=sampling_of(2), stop_tokens=(never, stop)
        )
        client.wait()
        output = client.answers[name]
        assert output.error is None
        assert output.generated_tokens == whole[: first + 1]


def test_cancelled_request_delivers_tokens_logprobs_and_versions(
    engine: Engine, model: Model
) -> None:
    client = Client(engine, "cancelled", 6)
    name = client.send(prompt=PROMPTS[1], new_tokens=900, sampling=sampling_of(1))
    wait_for(lambda: client.streamed.get(name))
    engine.cancel(name)
    client.wait()
    output = client.answers[name]
    count = len(output.generated_tokens)
    assert output.failure is None
    assert 0 < count < 900
    assert output.generated_tokens == say_alone(model, PROMPTS[1], count, sampling_of(1))
    assert len(output.logprobs) == len(output.versions) == count
