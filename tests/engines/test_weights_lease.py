"""The borrower's weights come and go with slabs, and no token is lost, late or another."""

from collections.abc import Callable, Iterator

import pytest
import torch

from rose.engines.transformers import LeasedWeights, LiveWeights, Model, Sampling, load_model
from rose.errors import InvalidArgument, Unavailable
from rose.executor import Reason, Refusal
from rose.executor.weights import WeightsState
from rose.scheduler.worker import TurnEnd
from rose.transfer.receiving.commit import CommitState
from rose.units import MIB
from tests.engines.borrowed import LEASED_POOL_BYTES, Borrowed
from tests.engines.intact import equals_host, is_intact
from tests.engines.pair import Client, Pair
from tests.engines.policies import TileCommit, copy_of, generate_alone, later
from tests.engines.recorder import turn
from tests.engines.stepper import Stepper
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def policy() -> Model:
    return load_model("tiny-policy", seed=4)


@pytest.fixture
def open_pair(models: tuple[Model, Model], policy: Model) -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []

    def open_one(*, is_live: bool = False, **settings) -> Pair:
        model = copy_of(policy)
        live = LiveWeights(model) if is_live else None
        pairs.append(
            Pair(
                (models[0], model),
                pool_bytes=LEASED_POOL_BYTES,
                lease=lambda model, lane: LeasedWeights(model, lane, live=live, **settings),
            )
        )
        pairs[-1].live = live
        return pairs[-1]

    yield open_one
    for pair in pairs:
        pair.rollout.stop()
        pair.serving.stop()
        assert pair.weights.lease.slabs == frozenset()
        pair.device.arbiter.check_invariants()
        pair.device.close()
        assert pair.device.gave_back is None


@pytest.fixture
def stepper(open_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> Stepper:
    return Stepper(open_pair(), monkeypatch)


def prompt(seed: int, tokens: int = 20) -> list[int]:
    return [(seed * 37 + 11 * place) % 128 for place in range(tokens)]


def held(pair: Pair) -> int:
    return pair.device.arbiter.snapshot().partitions[1].held


def truth(pair: Pair) -> Model:
    return copy_of(pair.rollout_model)


# ---- by hand -------------------------------------------------------------------------------------


def test_parameters_are_views_of_the_pool_while_active_and_of_the_host_else(
    stepper: Stepper,
) -> None:
    pair, lease = stepper.pair, stepper.pair.weights.lease
    pool = pair.device.arbiter.pool_address
    end = pool + pair.device.arbiter.pool_bytes

    def in_pool() -> set[bool]:
        return {pool <= one.data_ptr() < end for one in pair.rollout_model.parameters()}

    assert lease.state is WeightsState.DORMANT
    assert held(pair) == 0
    assert in_pool() == {False}
    stepper.client.send(prompt=prompt(1), new_tokens=3)
    stepper.step()
    assert lease.state is WeightsState.ACTIVE
    assert in_pool() == {True}
    assert equals_host(pair.weights)
    pair.device.lender.take_back(100)
    assert lease.state is WeightsState.DORMANT
    assert in_pool() == {False}
    assert equals_host(pair.weights)
    assert held(pair) == 0
    stepper.finish()
    assert stepper.client.wrong(truth(pair)) == []


def test_tokens_are_the_same_whether_weights_were_evicted_between_any_two_steps(
    stepper: Stepper, poisoned_on_hand_out: None
) -> None:
    pair = stepper.pair
    for one in range(3):
        stepper.client.send(prompt=prompt(one, 30), new_tokens=8)
    evictions = 0
    while stepper.client.waiting:
        stepper.step()
        if stepper.client.waiting:
            window = pair.weights.lease.slabs
            pair.device.lender.take_back(100)
            evictions += 1
            # Their new owner writes on them.
            for slab in window:
                pair.rollout_lane.kv.slab_window(range(slab, slab + 1))[:] = 0xFF
            assert pair.weights.lease.state is WeightsState.DORMANT
            pair.serving_lane.settle()
    assert evictions >= 8
    assert stepper.client.errors() == []
    assert stepper.client.wrong(truth(pair)) == []


def test_kv_is_taken_before_weights_and_the_rest_goes_with_them(stepper: Stepper) -> None:
    pair, lease = stepper.pair, stepper.pair.weights.lease
    stepper.client.send(prompt=prompt(1, 40), new_tokens=4)
    stepper.step()
    kv = held(pair) - lease.slabs_max
    assert kv >= 1
    pair.device.lender.take_back(kv)
    assert lease.state is WeightsState.ACTIVE
    assert held(pair) == lease.slabs_max
    stepper.step()
    assert held(pair) > lease.slabs_max
    pair.device.lender.take_back(held(pair) - 1)
    assert lease.state is WeightsState.DORMANT
    assert held(pair) == 0
    stepper.finish()
    assert stepper.client.wrong(truth(pair)) == []


@pytest.mark.parametrize("gate", [1, 7])
def test_step_that_is_aborted_lets_its_weights_go_by_the_deadline(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch, gate: int
) -> None:
    pair, lease = stepper.pair, stepper.pair.weights.lease
    name = stepper.client.send(prompt=prompt(2), new_tokens=5)
    stepper.step()
    before = len(stepper.client.streamed[name])
    stepper.prepare()
    stock, seen = pair.rollout_lane.gate, []

    def gate_with_revocation() -> None:
        seen.append(len(seen) + 1)
        if seen[-1] == gate:
            pair.device.lender.take_back(100)  # Serving's thread; it aborts what runs.
            assert lease.state is WeightsState.EVICTING
            assert held(pair) > 0
        stock()

    monkeypatch.setattr(pair.rollout_lane, "gate", gate_with_revocation)
    stepper.processor._generation_step(stepper.engine.manager.model)
    monkeypatch.setattr(pair.rollout_lane, "gate", stock)
    stepper.processor.update_batch()
    assert stepper.processor.aborted_steps == 1
    assert lease.state is WeightsState.DORMANT
    assert held(pair) == 0
    (revocation,) = pair.device.lender.collector.history
    assert revocation.slabs_fenced == 0
    assert revocation.slabs_returned >= lease.slabs_max
    assert len(stepper.client.streamed[name]) == before
    stepper.finish()
    assert stepper.client.streamed[name] == [1, 2, 3, 4, 5]
    assert stepper.client.wrong(truth(pair)) == []


def test_weights_taken_in_the_middle_of_their_copy_are_copied_again(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, lease = stepper.pair, stepper.pair.weights.lease
    stock, seen = pair.rollout_lane.gate, []

    def gate_with_revocation() -> None:
        seen.append(lease.state)
        if len(seen) == 1:
            pair.device.lender.take_back(100)
        stock()

    monkeypatch.setattr(pair.rollout_lane, "gate", gate_with_revocation)
    stepper.client.send(prompt=prompt(3), new_tokens=3)
    assert not stepper.processor.prepare_next_batch()
    assert seen == [WeightsState.ACTIVATING]
    assert lease.state is WeightsState.DORMANT
    assert held(pair) == 0
    assert not pair.device.gate.is_in_step()
    stepper.finish()
    assert stepper.client.wrong(truth(pair)) == []


def test_each_slice_of_a_copy_begins_with_nothing_parked(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a copy waits for its stream: behind a closed gate no abort would reach it."""
    lease, lane, calls = stepper.pair.weights.lease, stepper.pair.rollout_lane, []
    advance, settle = lease.advance, lane.settle
    monkeypatch.setattr(lease, "advance", lambda: (calls.append("copy"), advance())[1])
    monkeypatch.setattr(lane, "settle", lambda: (calls.append("settle"), settle())[1])
    stepper.client.send(prompt=prompt(3), new_tokens=2)
    stepper.prepare()
    copies = calls.count("copy")
    assert copies > 1
    first = calls.index("copy")
    assert calls[first : first + 2 * copies - 1] == ["copy", *["settle", "copy"] * (copies - 1)]
    stepper.processor._generation_step(stepper.engine.manager.model)
    stepper.processor.update_batch()
    stepper.finish()


def test_kv_stays_while_weights_can_come_back_and_makes_room_when_they_cannot(
    stepper: Stepper,
) -> None:
    pair, lease = stepper.pair, stepper.pair.weights.lease
    scheduler, arbiter = stepper.processor.scheduler, pair.device.arbiter
    stepper.client.send(prompt=prompt(6, 40), new_tokens=6)
    stepper.step()
    lease.evict()
    stepper.step()
    assert scheduler.preempted_tokens == 0
    lease.evict()
    kv = pair.rollout_lane.slabs()
    taken = arbiter.take(0, arbiter.slab_count)  # Serving has everything else.
    assert not stepper.processor.prepare_next_batch()
    assert scheduler.preempted_tokens > 0
    assert kv
    assert held(pair) == 0
    assert arbiter.give_back(0, len(taken)) > 0
    stepper.finish()
    assert stepper.client.wrong(truth(pair)) == []


@pytest.mark.parametrize("hold_off_ms", [0.0, 1.0])
def test_loop_comes_back_when_growth_is_no_longer_held_off(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch, hold_off_ms: float
) -> None:
    """Else it would sleep in the manager until there is news, which may be never."""
    refusal = Refusal(Reason.RESERVE_AT_RISK, retry_after_ms=hold_off_ms)
    monkeypatch.setattr(stepper.pair.device.lender, "grow", lambda _blocks: refusal)
    stepper.client.send(prompt=prompt(5), new_tokens=3)
    stepper.processor.wake.clear()
    assert not stepper.processor.prepare_next_batch()
    assert stepper.processor.wake.is_set() == (hold_off_ms > 0)
    monkeypatch.undo()
    stepper.pair.rollout.cancel(next(iter(stepper.client.asked)))


def test_requests_are_failed_when_the_device_lends_no_more(stepper: Stepper) -> None:
    stepper.client.send(prompt=prompt(5), new_tokens=30)
    stepper.step()
    stepper.pair.device.lender.close()
    assert stepper.pair.weights.lease.state is WeightsState.DORMANT
    with pytest.raises(Unavailable, match="has stopped lending"):
        stepper.prepare()
    assert held(stepper.pair) == 0


# ---- commits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_evicted", [False, True])
def test_commit_changes_the_host_and_what_is_active(
    open_pair, monkeypatch: pytest.MonkeyPatch, is_evicted: bool
) -> None:
    pair = open_pair(is_live=True)
    stepper, lease, live = Stepper(pair, monkeypatch), pair.weights.lease, pair.live
    stepper.client.send(prompt=prompt(1), new_tokens=2)
    stepper.finish()
    if is_evicted:
        pair.device.lender.take_back(100)
    done = []
    fresh = later(live.row, seed=9)
    pair.rollout.manager.background_thread_status.clear()
    stepper.processor.commits.add(TileCommit(live, fresh), version=1, on_done=done.append)
    wait_for(lambda: not stepper.processor.prepare_next_batch() and done)
    assert done[0].is_match
    assert (lease.state is WeightsState.DORMANT) == is_evicted  # It was copied, not evicted.
    assert (live.row == fresh).all()
    assert is_intact(live)
    second = Client(pair.rollout, "after", 6)
    second.send(prompt=prompt(2, 40), new_tokens=6)
    stepper.client = second
    stepper.finish()
    assert is_intact(live)
    assert second.wrong(truth(pair)) == []


# ---- as a worker ---------------------------------------------------------------------------------


@pytest.fixture
def borrowed(models: tuple[Model, Model]) -> Iterator[Borrowed]:
    made = Borrowed(models[0], is_leased=True)
    with made.pair:
        yield made
        made.pair.rollout.stop()
        assert made.received.faults == []
        assert made.pair.device.gave_back is None
        made.pair.device.arbiter.check_invariants()


def test_worker_whose_weights_serving_took_ends_its_lease_and_opens_the_next_with_weights(
    borrowed: Borrowed,
) -> None:
    lane, lease = borrowed.lane, borrowed.pair.weights.lease
    borrowed.grant()
    slab_tokens = lane.kv.blocks_per_slab * lane.kv.geometry.block_tokens
    kv_slabs = lane.slabs_max() - lease.slabs_max
    assert borrowed.received.leases[-1].kv_tokens == kv_slabs * slab_tokens
    borrowed.worker.start_turn(turn(0, prompt(1), 400))
    borrowed.received.wait_tokens(0, 3)
    taken = borrowed.held
    borrowed.take(taken)
    borrowed.received.wait_ended(0)
    assert borrowed.received.ends(0) == [TurnEnd.INTERRUPTED]
    over = borrowed.received.wait_lease(lambda one: one.kv_tokens == 0)
    assert over.grant_epoch == 1
    # Not before the weights have slabs again: its turns would wait for them.
    borrowed.received.wait_lease(lambda one: one.grant_epoch == 2 and one.kv_tokens > 0)
    assert lease.state is not WeightsState.DORMANT
    said = borrowed.received.tokens(0)
    rest = turn(0, prompt(1) + said, 12, first_token=len(said), grant_epoch=2)
    borrowed.worker.start_turn(rest)
    borrowed.received.wait_ended(0, times=2)
    whole = generate_alone(truth(borrowed.pair), prompt(1), len(said) + 12, Sampling(1000, 1.0))
    assert borrowed.received.tokens(0) == whole


def test_worker_commits_to_weights_that_are_away(borrowed: Borrowed) -> None:
    lease = borrowed.pair.weights.lease
    borrowed.grant()
    assert lease.state is WeightsState.DORMANT
    commit = borrowed.commit(1)
    borrowed.received.wait_for(lambda: borrowed.received.commits, "commit")
    assert commit.state is CommitState.COMMITTED
    borrowed.worker.start_turn(turn(0, prompt(1), 9))
    borrowed.received.wait_ended(0)
    assert lease.state is WeightsState.ACTIVE
    assert is_intact(borrowed.weights)
    assert borrowed.received.tokens(0) == generate_alone(
        truth(borrowed.pair), prompt(1), 9, Sampling(1000, 1.0)
    )


# ---- what is refused -----------------------------------------------------------------------------


def test_weights_that_leave_no_slab_for_kv_are_refused(
    models: tuple[Model, Model], policy: Model
) -> None:
    with pytest.raises(InvalidArgument, match="raise limit_bytes"):
        Pair(
            (models[0], load_model("tiny-policy", seed=4)), pool_bytes=24 * MIB, lease=LeasedWeights
        )


def test_stopped_model_is_whole_on_the_host(open_pair, policy: Model) -> None:
    pair = open_pair(dormant_bytes_max=1 << 30)
    with pair:
        client = Client(pair.rollout, "rollout", 5)
        client.send(prompt=prompt(1), new_tokens=2)
        client.wait()
    assert held(pair) == 0
    for ours, theirs in zip(pair.rollout_model.parameters(), policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)
