"""Two real engines over the same bytes while slabs change hands: every output must be right."""

import random
import threading
import time
from collections.abc import Callable

import pytest
import torch
from typing_extensions import Self

from rose.engines.transformers import (
    Engine,
    EngineConfig,
    Model,
    kv_geometry,
    load_model,
    rollout_engine,
    serving_engine,
)
from rose.engines.transformers.cache import SlabPool
from rose.executor import SLO, CoServing, Policy
from rose.memory import choose_slab_bytes

_POOL_BYTES = 40 << 20
_SECONDS = 12.0
_POISON = 0xFF  # NaN in every float type


class Pair:
    """Serving and a borrower on one device, small enough to be at each other's throats."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.serving_model = load_model("tiny-qwen2", seed=1)
        self.rollout_model = load_model("tiny-qwen3", seed=2)
        config = EngineConfig(max_batch_tokens=64)
        borrower = EngineConfig(max_batch_tokens=64, prefix_cache=True)
        serving_kv = kv_geometry(self.serving_model, config)
        rollout_kv = kv_geometry(self.rollout_model, borrower)
        self.device = CoServing.open(
            "cpu",
            pool_bytes=_POOL_BYTES,
            slab_bytes=choose_slab_bytes(serving_kv, rollout_kv),
            policy=Policy(regrow_after_ms=5.0, blocking_ms=1000.0),
        )
        self.serving_lane = self.device.serving(
            serving_kv,
            slo=SLO(ttft_ms=5000.0, tpot_ms=1000.0),
            reserve_bytes=4 << 20,
            step_tokens=64,
            request_tokens=256,
        )
        self.rollout_lane = self.device.rollout(rollout_kv, limit_bytes=_POOL_BYTES)
        self.serving = serving_engine(self.serving_model, self.serving_lane, config)
        self.rollout = rollout_engine(
            self.rollout_model, self.rollout_lane, borrower, layers_per_segment=1
        )

    def __enter__(self) -> Self:
        self.serving.start()
        self.rollout.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rollout.stop()
        self.serving.stop()
        self.device.close()


class Client:
    """Sends requests to one engine and keeps what comes back."""

    def __init__(self, engine: Engine, name: str, seed: int) -> None:
        self.engine = engine
        self.name = name
        self.rng = random.Random(seed)
        self.answers: dict[str, tuple[list[int], int, list[int]]] = {}
        self.errors: list[str] = []
        self.sent = 0
        self._done = threading.Condition()

    def send(
        self, *, prompt_tokens: int, new_tokens: int, on_finish: Callable[[], None] | None = None
    ) -> str:
        self.sent += 1
        request_id = f"{self.name}-{self.sent}"
        prompt = [self.rng.randrange(4096) for _ in range(prompt_tokens)]

        def on_output(output) -> None:
            if not output.is_finished():
                return
            if on_finish is not None:
                on_finish()
            with self._done:
                if output.error is not None:
                    self.errors.append(output.error)
                self.answers[request_id] = (prompt, new_tokens, list(output.generated_tokens))
                self._done.notify_all()

        self.engine.submit(request_id, prompt, max_new_tokens=new_tokens, on_output=on_output)
        return request_id

    def wait(self, timeout_s: float) -> None:
        with self._done:
            assert self._done.wait_for(lambda: len(self.answers) == self.sent, timeout_s), (
                f"{self.name}: {self.sent - len(self.answers)} of {self.sent} requests unanswered; "
                f"engine: {self.engine.error}"
            )

    def wrong(self, model: Model) -> list[str]:
        """The requests whose tokens differ from those of `model.generate`."""
        found = []
        for request_id, (prompt, new_tokens, tokens) in self.answers.items():
            expected = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=new_tokens,
                eos_token_id=-1,
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
            if tokens != expected:
                found.append(request_id)
        return found


@pytest.fixture
def poisoned_on_hand_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill every sector with NaN when its new owner gets it, as a slab that changed hands would be.

    If the old owner still read it, or the new one read before it wrote, tokens would change.
    """
    stock = SlabPool.allocate_sector

    def allocate(pool: SlabPool, index: int) -> None:
        before = set(pool._free_blocks[index].trees)
        stock(pool, index)
        (sector,) = set(pool._free_blocks[index].trees) - before
        size = pool.space.geometry.block_bytes
        pool.space.flat()[sector * size : (sector + 1) * size] = _POISON

    monkeypatch.setattr(SlabPool, "allocate_sector", allocate)


def _chaos(pair: Pair, *, seed: int, seconds: float) -> tuple[Client, Client]:
    """Serve, roll out, revoke, pause and abort at random for a while; wait for every answer."""
    rng = random.Random(seed)
    serving = Client(pair.serving, "serving", seed)
    rollout = Client(pair.rollout, "rollout", seed + 1)
    lane = pair.serving_lane

    def serve() -> None:
        name = f"serving-{serving.sent + 1}"
        prompt_tokens = rng.randint(1, 120)
        lane.arrived(name, prompt_tokens=prompt_tokens)
        serving.send(
            prompt_tokens=prompt_tokens,
            new_tokens=rng.randint(1, 12),
            on_finish=lambda: lane.finished(name),
        )

    def roll_out() -> None:
        if rollout.sent - len(rollout.answers) < 8:
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
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        rng.choice(actions)()
        time.sleep(rng.uniform(0.0, 0.1))
    serving.wait(60.0)
    rollout.wait(60.0)
    return serving, rollout


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("poisoned_on_hand_out")
def test_outputs_are_right_while_slabs_change_hands() -> None:
    with Pair() as pair:
        serving, rollout = _chaos(pair, seed=7, seconds=_SECONDS)
        gave_back = pair.device.gave_back
        history = list(pair.device.lender.history)
        aborted = pair.rollout.processor.aborted_steps
        pair.device.arbiter.check_invariants()
    assert gave_back is None
    assert serving.errors == []
    assert rollout.errors == []
    assert sum(one.slabs_returned for one in history) > 10
    assert sum(one.slabs_fenced for one in history) == 0
    assert aborted > 0
    assert serving.wrong(pair.serving_model) == []
    assert rollout.wrong(pair.rollout_model) == []


@pytest.mark.timeout(120)
def test_the_check_sees_a_live_slab_that_was_poisoned() -> None:
    """The negative control: without it the chaos test could pass by not looking."""
    with Pair() as pair:
        rollout = Client(pair.rollout, "rollout", 3)
        rollout.send(prompt_tokens=90, new_tokens=60)
        allocator = pair.rollout_lane.kv.allocator
        while allocator.used_blocks == 0:
            time.sleep(0.001)
        flat, size = pair.rollout_lane.kv.flat(), pair.rollout_lane.kv.geometry.block_bytes
        for slab in pair.rollout_lane.slabs():
            first, count = allocator.slab_blocks(slab)
            flat[first * size : (first + count) * size] = _POISON
        rollout.wait(60.0)
        assert rollout.wrong(pair.rollout_model) != []
