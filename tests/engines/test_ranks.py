"""The order in which a borrower's slabs are taken back."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rose.engines.transformers import Model
from rose.executor.loans import Loans, StepPlan
from tests.engines.pair import Pair
from tests.engines.stepper import Stepper
from tests.engines.test_moves import spread


@pytest.fixture
def stepper(models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch) -> Iterator[Stepper]:
    pair = Pair(models, move_bytes=0)
    yield Stepper(pair, monkeypatch)
    pair.rollout.stop()
    pair.serving.stop()
    pair.device.close()


def test_every_step_ranks_the_slabs_by_what_their_loss_costs(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked: list[list[int]] = []
    names = spread(stepper, 3)
    stock = Loans.planning

    @contextmanager
    def planning(loans: Loans) -> Iterator[StepPlan]:
        with stock(loans) as plan:
            yield plan
            ranked.append(plan.order)

    monkeypatch.setattr(Loans, "planning", planning)
    stepper.prepare()
    cache = stepper.processor.cache
    slab_of = {name: next(iter(cache.slabs_of(name))) for name in names}
    (order,) = ranked
    assert sorted(order) == sorted(stepper.pair.rollout_lane.slabs())
    # The first request has the most tokens, so it goes last. Idle slabs go before all of them.
    assert order[-3:] == [slab_of[name] for name in reversed(names)]
    stepper.processor._generation_step(stepper.engine.manager.model)
    stepper.processor.update_batch()
    stepper.finish()


def test_slabs_are_taken_back_in_the_order_of_their_ranks(stepper: Stepper) -> None:
    names = spread(stepper, 3)
    cache = stepper.processor.cache
    stepper.pair.rollout_lane.give_back_idle()
    newest = cache.slabs_of(names[-1])
    stepper.pair.device.lender.take_back(1)  # Between two steps the slab leaves in the call.
    assert newest.isdisjoint(stepper.pair.rollout_lane.slabs())
    assert cache.slabs_of(names[0]) <= set(stepper.pair.rollout_lane.slabs())
    stepper.pair.serving_lane.settle()
    stepper.finish()
    assert stepper.client.wrong(stepper.pair.rollout_model) == []
