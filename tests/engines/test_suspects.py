"""Requests that make a step raise fail alone: the others' tokens are what they would be anyway."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.engines.transformers import EngineWorker, Model, Sampling
from rose.engines.transformers.suspects import Suspects
from rose.scheduler.worker import TurnEnd, WorkerKind
from tests.engines.borrowed import Borrowed
from tests.engines.policies import engine_of, generate_alone, policy
from tests.engines.recorder import Recorder, turn

PROMPTS = [[(11 * place + 5 * one) % 128 for place in range(100 + one)] for one in range(6)]
TOKENS = 40


@given(
    names=st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True),
    data=st.data(),
)
def test_every_guilty_request_is_found_and_no_other(names: list[int], data) -> None:
    guilty = set(data.draw(st.lists(st.sampled_from(names), unique=True)))
    fresh = set(data.draw(st.lists(st.sampled_from(names), unique=True)))
    suspects, left, found, ran = Suspects(), set(names), set(), set()
    for _ in range(200):
        suspects.keep(left)
        batch = sorted(left if suspects.group is None else left & suspects.group)
        if not batch or (suspects.group is None and not guilty & left and ran >= left):
            break
        if guilty & set(batch):
            one = suspects.raised(batch, fresh)
            if one is not None:
                found.add(one)
                left.discard(one)
        else:
            suspects.passed(batch)
            ran |= set(batch)
    assert found == guilty
    assert ran >= set(names) - guilty
    assert suspects.group is None


class Poison:
    """Makes a step raise while a trajectory in it has at least so many tokens in its context."""

    def __init__(self, processor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deadly: dict[int, int] = {}
        self.raised = 0
        stock = processor.model_runner.compute_batch

        def compute(*arguments: object) -> None:
            for future in processor.inputs_and_outputs.requests_in_batch:
                number = int(future.state.request_id.partition(".")[0])
                if future.state.position_offset >= self.deadly.get(number, 1 << 30):
                    self.raised += 1
                    raise IndexError(f"planted in {number}")
            stock(*arguments)

        monkeypatch.setattr(processor.model_runner, "compute_batch", compute)


class World:
    """A worker, what it reports, and what its model would say alone."""

    def __init__(self, model: Model, processor, worker: EngineWorker, received: Recorder) -> None:
        self.model, self.processor = model, processor
        self.worker, self.received = worker, received

    def truth(self, number: int) -> list[int]:
        return generate_alone(self.model, PROMPTS[number], TOKENS, Sampling(1000 + number, 1.0))


@pytest.fixture(params=["dedicated", "borrowed"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    received = Recorder()
    if request.param == "dedicated":
        model = policy(seed=9)
        engine = engine_of(model, prefix_cache=True)
        worker = EngineWorker(engine, 4, WorkerKind.DEDICATED, received, flush_ms=0.0)
        engine.start()
        received.wait_lease(lambda _: True)
        yield World(model, engine.processor, worker, received)
        engine.stop()
    else:
        made = Borrowed(request.getfixturevalue("models")[0])
        received = made.received
        with made.pair:
            made.grant()
            yield World(made.model, made.processor, made.worker, received)
            made.pair.rollout.stop()
            made.pair.device.arbiter.check_invariants()
    assert received.faults == []


@pytest.mark.parametrize("tokens", [0, 80, 120], ids=["first chunk", "second chunk", "decoding"])
def test_request_that_raises_fails_alone(world: World, tokens: int, monkeypatch) -> None:
    poison = Poison(world.processor, monkeypatch)
    poison.deadly = {2: tokens, 4: tokens}
    for number, prompt in enumerate(PROMPTS):
        world.worker.start_turn(turn(number, prompt, TOKENS))
    world.received.wait_ended(*range(len(PROMPTS)))
    assert poison.raised >= 2
    for number in range(len(PROMPTS)):
        said = world.received.tokens(number)
        if number in poison.deadly:
            assert world.received.ends(number) == [TurnEnd.FAILED]
            assert world.received.outputs(number)[-1].error == f"planted in {number}"
            assert said == world.truth(number)[: len(said)]
        else:
            assert world.received.ends(number) == [TurnEnd.FINISHED]
            assert said == world.truth(number)
    cache = world.processor.cache
    world.received.wait_for(
        lambda: all(not one.block_table for one in cache.cache_allocators.values()), "free cache"
    )


def test_a_batch_that_cannot_be_prepared_is_divided_too(world: World, monkeypatch) -> None:
    stock = world.processor.model_runner.prepare_rows

    def prepare(batch, device) -> None:
        if any(future.state.request_id.startswith("1.") for future in batch):
            raise OverflowError("planted")
        stock(batch, device)

    monkeypatch.setattr(world.processor.model_runner, "prepare_rows", prepare)
    for number in range(3):
        world.worker.start_turn(turn(number, PROMPTS[number], TOKENS))
    world.received.wait_ended(0, 1, 2)
    ends = [world.received.ends(number) for number in range(3)]
    assert ends == [[TurnEnd.FINISHED], [TurnEnd.FAILED], [TurnEnd.FINISHED]]
    assert world.received.tokens(0) == world.truth(0)
    assert world.received.tokens(2) == world.truth(2)
