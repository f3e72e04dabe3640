"""Two real engines over the same bytes while slabs change hands: every output must be right."""

import random
import time

import pytest

from rose.engines.transformers import Model
from tests.engines.conftest import POISON
from tests.engines.pair import Client, Pair
from tests.known_model import confirm

_SECONDS_MAX = 250.0
_STEPS_ABORTED = 3


def _has_seen_enough(pair: Pair, slabs: int) -> bool:
    returned = sum(one.slabs_returned for one in list(pair.device.lender.collector.history))
    aborted = pair.rollout.processor.aborted_steps
    return returned >= slabs and aborted >= _STEPS_ABORTED


def _chaos(pair: Pair, *, seed: int, seconds: float, slabs: int) -> tuple[Client, Client]:
    """Serve, roll out, revoke, pause and abort at random for a while; wait for every answer.

    The while lasts `seconds` at least, and until so many slabs have come back.
    """
    rng = random.Random(seed)
    serving = Client(pair.serving, "serving", seed)
    rollout = Client(pair.rollout, "rollout", seed + 1)
    lane = pair.serving_lane

    def serve() -> None:
        name = f"serving-{len(serving.asked) + 1}"
        prompt_tokens = rng.randint(1, 120)
        lane.arrived(name, prompt_tokens=prompt_tokens)
        serving.send(
            prompt_tokens=prompt_tokens,
            new_tokens=rng.randint(1, 12),
            on_finish=lambda: lane.finished(name),
        )

    def roll_out() -> None:
        if rollout.waiting < 8:
            rollout.send(prompt_tokens=rng.randint(1, 100), new_tokens=rng.randint(1, 40))

    def revoke() -> None:
        lane.ensure(lane.kv.allocator.free_blocks + rng.randint(1, 60))

    def pause() -> None:
        pair.rollout.pause()
        time.sleep(rng.uniform(0.0, 0.05))
        pair.rollout.resume()

    actions = [serve, serve, roll_out, roll_out, revoke, revoke, pause, pair.device.gate.abort_step]
    for _ in range(6):
        roll_out()
    began = time.monotonic()
    while (since := time.monotonic() - began) < seconds or not _has_seen_enough(pair, slabs):
        assert since < _SECONDS_MAX, "too little has happened"
        rng.choice(actions)()
        time.sleep(rng.uniform(0.0, 0.08))
    serving.wait()
    lane.settle()  # what the last `revoke` took: no engine asked for it, so none offers it
    rollout.wait()
    return serving, rollout


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("poisoned_on_hand_out")
@pytest.mark.parametrize(
    ("seed", "seconds", "slabs"),
    [(7, 1.5, 8), *(pytest.param(seed, 4.0, 20, marks=pytest.mark.slow) for seed in range(7, 10))],
)
def test_outputs_are_right_while_slabs_change_hands(
    models: tuple[Model, Model], seed: int, seconds: float, slabs: int
) -> None:
    pair = Pair(models, probes=True)  # or an outlier could end lending, and rollouts starve
    confirm(pair.device._parts.model, 64)
    with pair:
        serving, rollout = _chaos(pair, seed=seed, seconds=seconds, slabs=slabs)
        gave_back = pair.device.gave_back
        pair.rollout.stop()
        pair.device.arbiter.check_invariants()
        # A deadline that a busy machine missed is no error: what was late must have come home.
        assert pair.device.arbiter.snapshot().quarantined == 0
    assert gave_back is None
    assert serving.errors() == []
    assert rollout.errors() == []
    assert serving.wrong(pair.serving_model) == []
    assert rollout.wrong(pair.rollout_model) == []


@pytest.mark.timeout(600)
def test_the_check_sees_a_live_slab_that_was_poisoned(models: tuple[Model, Model]) -> None:
    """The negative control: without it the chaos test could pass by not looking."""
    with Pair(models) as pair:
        rollout = Client(pair.rollout, "rollout", 3)
        name = rollout.send(prompt_tokens=90, new_tokens=60)
        # Some tokens are out, so the KV of the prompt is written, and more tokens will read it.
        while not rollout.streamed.get(name):
            time.sleep(0.001)
        pair.rollout.pause()
        allocator = pair.rollout_lane.kv.allocator
        flat, size = pair.rollout_lane.kv.flat(), pair.rollout_lane.kv.geometry.block_bytes
        for slab in pair.rollout_lane.slabs():
            first, count = allocator.slab_blocks(slab)
            flat[first * size : (first + count) * size] = POISON
        pair.rollout.resume()
        rollout.wait()
        assert rollout.streamed[name][0] < 60
        assert rollout.wrong(pair.rollout_model) == [name]
