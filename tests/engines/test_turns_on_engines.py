"""What an engine that samples says: the same in any company, on any engine, after any mishap."""

import random
from collections.abc import Iterator

import pytest

from rose.engines.transformers import (
    Engine,
    Model,
    Sampling,
)
from tests.engines.pair import Client, Pair
from tests.engines.policies import engine_of, generate_alone, policy, true_logprobs
from tests.engines.stepper import Stepper
from tests.engines.thin import thin_policy

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


# ---- mishaps on the borrower ---------------------------------------------------------------------


def undisturbed(model: Model, prompt: list[int], new_tokens: int, sampling: Sampling) -> list[int]:
    return generate_alone(model, prompt, new_tokens, sampling)


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
    whole = generate_alone(model, PROMPTS[1], 40, sampling_of(2))
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
