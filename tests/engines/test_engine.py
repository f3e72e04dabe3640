"""The borrower's engine, step by step and with its own thread: no token is lost or invented."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from transformers.generation.continuous_batching.requests import RequestStatus

from rose._core import Grant
from rose.engines.transformers import Model
from rose.errors import Unavailable
from rose.executor.revocation import Revocation
from tests.engines.pair import WAIT_S, Client, Pair
from tests.engines.stepper import Stepper, blocks_of
from tests.pins import Pins
from tests.waiting import wait_for


@pytest.fixture
def pair(models: tuple[Model, Model]) -> Iterator[Pair]:
    made = Pair(models)
    yield made
    made.rollout.stop()
    made.serving.stop()
    made.device.close()
    assert made.device.gave_back is None
    made.device.arbiter.check_invariants()


@pytest.fixture
def stepper(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Stepper:
    return Stepper(pair, monkeypatch)


def books(state) -> tuple:
    return (
        state.position_offset,
        list(state.tokens_to_process),
        list(state.remaining_prefill_tokens),
        list(state.generated_tokens),
    )


# ---- aborted steps -------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [1, 9])
def test_aborted_decode_is_rolled_back(stepper: Stepper, gate: int) -> None:
    name = stepper.client.send(prompt_tokens=20, new_tokens=6)
    for _ in range(3):
        stepper.step()
    before = books(stepper.state(name))
    assert stepper.state(name).status is RequestStatus.DECODING
    for _ in range(2):
        stepper.step(abort_at=gate)
        assert books(stepper.state(name)) == before
        assert stepper.state(name).status is RequestStatus.DECODING
    stepper.finish()
    assert stepper.processor.aborted_steps == 2
    assert stepper.client.wrong(stepper.pair.rollout_model) == []
    assert stepper.client.streamed[name] == [1, 2, 3, 4, 5, 6]


def test_aborted_prefill_is_rolled_back(stepper: Stepper) -> None:
    # 150 tokens are three steps of 64: the first, a middle and the last one are aborted.
    name = stepper.client.send(prompt_tokens=150, new_tokens=3)
    for done in (0, 64, 128):
        stepper.step(abort_at=3)
        state = stepper.state(name)
        assert state.status is RequestStatus.PREFILLING
        assert state.position_offset == done
        assert len(state.remaining_prefill_tokens) == 150 - done
        assert state.tokens_to_process == []
        stepper.step()
    stepper.finish()
    assert stepper.processor.aborted_steps == 3
    assert stepper.client.wrong(stepper.pair.rollout_model) == []


@pytest.mark.parametrize("side", ["serving", "rollout"])
def test_a_pass_of_the_owner_beside_a_step_is_a_causal_one(pair: Pair, side: str) -> None:
    engine, model = getattr(pair, side), getattr(pair, f"{side}_model")
    prompt = torch.arange(40, 60).unsqueeze(0)
    alone = model(prompt).logits
    is_inside, goes_on = threading.Event(), threading.Event()

    def wait_inside(*_: object) -> None:
        is_inside.set()
        assert goes_on.wait(WAIT_S)

    hook = model.model.layers[0].register_forward_pre_hook(wait_inside)
    engine.start()
    client = Client(engine, side, 1)
    client.send(prompt_tokens=20, new_tokens=1)
    assert is_inside.wait(WAIT_S)
    hook.remove()
    beside = model(prompt).logits
    goes_on.set()
    client.wait()
    assert torch.equal(beside, alone)
    assert client.wrong(model) == []


def test_step_that_fails_is_ended_and_lets_go_of_its_slabs(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = Pins(stepper.pair.rollout_lane)
    stepper.client.send(prompt_tokens=60, new_tokens=4)
    stepper.prepare()
    assert stepper.processor._pin is not None

    def fail(*_arguments: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(stepper.processor.model_runner, "compute_batch", fail)
    assert pins.slabs != set()
    with pytest.raises(RuntimeError, match="planted"):
        stepper.processor._generation_step(stepper.engine.manager.model)
    gate = stepper.pair.device.gate
    assert not gate.is_in_step()
    assert not gate.is_running()
    assert stepper.processor._pin is None
    assert pins.slabs == set()


def test_step_pins_the_slabs_of_its_batch_and_no_others(stepper: Stepper) -> None:
    pair, allocator = stepper.pair, stepper.pair.rollout_lane.kv.allocator
    pins = Pins(pair.rollout_lane)
    name = stepper.client.send(prompt_tokens=60, new_tokens=4)
    assert pair.rollout_lane.ensure(3 * pair.rollout_lane.kv.blocks_per_slab)

    for _ in range(2):
        assert pins.slabs == set()
        stepper.prepare()
        touched = blocks_of(stepper.processor.cache, name)
        assert pins.slabs == set(allocator.slabs_of(touched)) != set()
        stepper.processor._generation_step(stepper.engine.manager.model)
        assert pins.slabs != set()
        stepper.processor.update_batch()
    assert len(pair.rollout_lane.slabs()) > 1
    stepper.finish()


def test_aborted_step_lets_go_of_its_slabs(stepper: Stepper) -> None:
    pair = stepper.pair
    name = stepper.client.send(prompt_tokens=60, new_tokens=4)
    stepper.step()
    stepper.prepare()
    everything = pair.serving_lane.kv.lendable_bytes // pair.serving_lane.kv.geometry.block_bytes
    leaving = everything - pair.serving_lane.kv.blocks_per_slab
    stepper.gates, stepper.abort_at = 0, 4
    lent = pair.device.arbiter.snapshot().partitions[1].held
    pair.device.lender.take_back(lent)
    assert pair.device.arbiter.snapshot().partitions[1].held == lent  # pinned, so they wait
    # The request in flight keeps its blocks: the step may also end before it comes to a gate.
    assert stepper.state(name).status is RequestStatus.DECODING
    assert blocks_of(stepper.processor.cache, name) != []
    stepper.processor._generation_step(stepper.engine.manager.model)
    stepper.processor.update_batch()
    assert pair.device.arbiter.snapshot().partitions[1].held == 0
    assert pair.serving_lane.ensure(leaving)
    pair.serving_lane.settle()
    stepper.abort_at = None
    stepper.finish()
    assert stepper.client.wrong(pair.rollout_model) == []


# ---- preemption ----------------------------------------------------------------------------------


def test_revocation_preempts_at_the_token(pair: Pair) -> None:
    with pair:
        client = Client(pair.rollout, "rollout", 6)
        names = [client.send(prompt_tokens=60, new_tokens=30) for _ in range(4)]
        for _ in range(6):
            tokens = sum(len(client.streamed.get(name, [])) for name in names)
            wait_for(
                lambda tokens=tokens: (
                    client.waiting == 0
                    or sum(len(client.streamed.get(name, [])) for name in names) > tokens
                )
            )
            lent = pair.device.arbiter.snapshot().partitions[1].held
            if lent:
                pair.device.lender.take_back(lent)
        client.wait()
    assert client.wrong(pair.rollout_model) == []
    for name in names:
        assert client.streamed[name] == list(range(1, 31))  # none twice, none missing


def test_slabs_that_no_step_needs_leave_inside_the_call(stepper: Stepper) -> None:
    pair = stepper.pair
    stepper.client.send(prompt_tokens=60, new_tokens=5)
    for _ in range(3):
        stepper.step()
    lent = pair.device.arbiter.snapshot().partitions[1].held
    assert lent > 0
    pair.device.lender.take_back(lent)  # no loop runs: nobody else could give them
    assert pair.device.arbiter.snapshot().partitions[1].held == 0
    pair.serving_lane.settle()
    stepper.finish()
    assert stepper.client.wrong(pair.rollout_model) == []


def test_every_block_that_serving_takes_is_checked_before_it_is_taken(pair: Pair) -> None:
    device, lane = pair.device, pair.serving_lane
    device._parts.keeper.stop()  # so that the block itself must have asked
    while isinstance(device.lender.grow(10_000), Grant):
        pass
    supply: list[int] = []

    tenancy = device.lender.newest
    stock = tenancy.revoke

    def revoke(revocation: Revocation) -> None:
        now = device.arbiter.snapshot()
        supply.append(now.partitions[0].free_blocks + now.unowned * lane.kv.blocks_per_slab)
        stock(revocation)

    tenancy.revoke = revoke
    pool = pair.serving.processor.cache.pool
    demand = device.lender.supply.demand_blocks
    while len(supply) < 3:
        pool.allocate_sector(0)  # between two steps: no batch is prepared, none ends
        assert not device.arbiter.is_short(lane.kv.partition)
    assert min(supply) >= demand


def test_borrower_without_slabs_idles_and_resumes_on_a_grant(pair: Pair) -> None:
    lane = pair.serving_lane
    everything = lane.kv.lendable_bytes // lane.kv.geometry.block_bytes
    assert lane.ensure(everything - lane.kv.blocks_per_slab)
    taken = lane.kv.allocator.alloc(lane.kv.allocator.free_blocks)
    with pair:
        client = Client(pair.rollout, "rollout", 7)
        client.send(prompt_tokens=30, new_tokens=4)
        time.sleep(0.3)
        assert client.answers == {}
        assert pair.rollout.is_running
        assert pair.rollout.error is None
        lane.kv.allocator.free(taken)
        lane.settle()
        client.wait()
    assert client.wrong(pair.rollout_model) == []


# ---- ends ----------------------------------------------------------------------------------------


def test_request_can_be_cancelled_while_the_gate_is_closed(pair: Pair) -> None:
    pair.serving_lane.arrived("a", prompt_tokens=8)
    with pair:
        client = Client(pair.rollout, "rollout", 9)
        name = client.send(prompt_tokens=20, new_tokens=4)
        pair.rollout.cancel(name)
        client.wait()
        assert client.errors() == ["the request was cancelled"]
        assert not pair.device.gate.is_open()
        pair.serving_lane.finished("a")


def test_stopped_engine_fails_what_is_left(pair: Pair) -> None:
    with pair:
        client = Client(pair.rollout, "rollout", 11)
        for _ in range(3):
            client.send(prompt_tokens=20, new_tokens=400)
        wait_for(lambda: client.streamed)
        pair.rollout.stop()
        client.wait()
        assert len(client.errors()) == 3
        assert not pair.rollout.is_accepting
        with pytest.raises(Unavailable, match="stopping"):
            client.send(prompt_tokens=1, new_tokens=1)


def test_borrower_fails_its_requests_when_rose_gave_back_and_serving_goes_on(
    models: tuple[Model, Model],
) -> None:
    with Pair(models) as pair:
        rollout = Client(pair.rollout, "rollout", 12)
        rollout.send(prompt_tokens=20, new_tokens=400)
        wait_for(lambda: rollout.streamed)
        pair.device.safety.report(RuntimeError("planted"))
        rollout.wait()
        assert "has stopped lending" in rollout.errors()[0]
        assert isinstance(pair.rollout.error, Unavailable)
        assert pair.device.arbiter.snapshot().partitions[1].held == 0
        serving = Client(pair.serving, "serving", 13)
        pair.serving_lane.arrived("a", prompt_tokens=50)
        serving.send(prompt_tokens=50, new_tokens=8)
        serving.wait()
        pair.serving_lane.finished("a")
    assert serving.wrong(pair.serving_model) == []
