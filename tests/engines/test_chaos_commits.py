"""A borrowed worker whose slabs, lease and weights all change while it runs turns."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from rose.engines.transformers import Committed, Model
from rose.engines.transformers.sampling import _signed, gumbel_noise, row_key
from rose.scheduler.worker import TurnEnd, TurnOutput
from rose.transfer.receiving.commit import CommitState
from tests.engines.borrowed import Borrowed
from tests.engines.intact import is_intact
from tests.engines.pair import TIE, Client
from tests.engines.policies import TileCommit, copy_of, later
from tests.engines.recorder import turn

_SECONDS_MAX = 250.0
_TURN_TOKENS = 30
_COMMITS = 3


@dataclass
class Stay:
    """One stay of a turn on the worker: what it said between a start and an end."""

    trajectory: int
    context: list[int]
    version: int  # when it was told to start
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: set[int] = field(default_factory=set)

    def take_in(self, output: TurnOutput) -> None:
        self.tokens.extend(output.tokens)
        self.logprobs.extend(output.logprobs)
        self.versions.update(output.versions)


class Chaos:
    """Turns of many trajectories, resumed whenever they come back, until all have been said."""

    def __init__(self, borrowed: Borrowed, *, seed: int, turns: int, slabs: int) -> None:
        self.borrowed = borrowed
        self.turns, self.slabs = turns, slabs  # at least so many turns, and slabs that came back
        self.rng = random.Random(seed)
        self.prompts: dict[int, list[int]] = {}
        self.said: dict[int, list[int]] = {}
        self.running: set[int] = set()
        self.seen = 0
        self.rows: dict[int, np.ndarray] = {0: borrowed.weights.row.copy()}
        self.commits = 0
        self.ends: list[Committed] = []
        self.stays: list[Stay] = []
        self.now: dict[int, Stay] = {}

    def start(self, trajectory: int) -> None:
        lease = self.borrowed.received.leases[-1]
        prompt = self.prompts[trajectory] + self.said[trajectory]
        self.running.add(trajectory)
        self.now[trajectory] = Stay(trajectory, prompt, self.borrowed.pair.rollout.version)
        self.stays.append(self.now[trajectory])
        self.borrowed.worker.start_turn(
            turn(
                trajectory,
                prompt,
                _TURN_TOKENS - len(self.said[trajectory]),
                first_token=len(self.said[trajectory]),
                grant_epoch=lease.grant_epoch,
            )
        )

    def start_some(self) -> None:
        if len(self.prompts) < self.turns or not self.has_returned_enough:
            self.start_another()
        for trajectory in self.prompts:
            is_idle = trajectory not in self.running
            if is_idle and len(self.said[trajectory]) < _TURN_TOKENS and len(self.running) < 7:
                self.start(trajectory)

    def start_another(self) -> None:
        if len(self.running) < 7:
            trajectory = len(self.prompts)
            length = self.rng.randint(3, 60)
            self.prompts[trajectory] = [self.rng.randrange(128) for _ in range(length)]
            self.said[trajectory] = []
            self.start(trajectory)

    def listen(self) -> None:
        """Take in what was said since; a turn that ended is idle, or over."""
        events = self.borrowed.received.events
        while self.seen < len(events):
            event = events[self.seen]
            self.seen += 1
            if not isinstance(event, TurnOutput):
                continue
            said = self.said[event.trajectory]
            assert event.first_token == len(said)  # no token is lost or delivered twice
            assert event.end is not TurnEnd.FAILED, event.error
            self.now[event.trajectory].take_in(event)
            said.extend(event.tokens)
            if event.end is not None:
                self.running.discard(event.trajectory)

    def commit(self) -> None:
        """Ask for the next commit when the one before is over; each third goes back."""
        if len(self.ends) < self.commits or self.commits >= _COMMITS:
            return
        self.commits += 1
        is_good = self.commits % 3 != 0
        fresh = later(self.borrowed.weights.row, seed=self.commits, share=0.02)
        if is_good:
            self.rows[self.commits] = fresh
        end = CommitState.COMMITTED if is_good else CommitState.ROLLED_BACK
        commit = TileCommit(self.borrowed.weights, fresh, end=end)
        self.borrowed.worker.commit(commit, self.commits, self.ends.append)

    @property
    def pure(self) -> list[Stay]:
        """Stays under one version: one forward pass tells what they should be."""
        return [stay for stay in self.stays if stay.versions == {stay.version}]

    @property
    def has_returned_enough(self) -> bool:
        history = list(self.borrowed.pair.device.lender.collector.history)
        is_enough = sum(one.slabs_returned for one in history) >= self.slabs
        return is_enough and len(self.pure) >= 2

    @property
    def has_seen_enough(self) -> bool:
        return (
            self.has_returned_enough
            and len(self.ends) == _COMMITS
            and len(self.prompts) >= self.turns
            and all(len(said) == _TURN_TOKENS for said in self.said.values())
        )

    def run(self, actions: list[Callable[[], None]]) -> None:
        began = time.monotonic()
        while not self.has_seen_enough:
            assert time.monotonic() - began < _SECONDS_MAX, "too little has happened"
            self.rng.choice(actions)()
            self.listen()
            self.start_some()
            time.sleep(self.rng.uniform(0.0, 0.06))


@torch.no_grad()
def is_what_it_would_generate(model: Model, stay: Stay) -> bool:
    """Whether tokens and logprobs are those of `model`, but for ties."""
    logits = model(torch.tensor([stay.context + stay.tokens])).logits
    logits = logits[0, len(stay.context) - 1 : -1].float()
    keys = [
        _signed(row_key(1000 + stay.trajectory, len(stay.context) + place))
        for place in range(len(stay.tokens))
    ]
    scores = logits + gumbel_noise(torch.tensor(keys), logits.shape[1])
    tokens = torch.tensor(stay.tokens).unsqueeze(1)
    is_best = scores.gather(1, tokens).squeeze(1) >= scores.max(dim=1).values - TIE
    logprobs = torch.log_softmax(logits, dim=1).gather(1, tokens).squeeze(1)
    is_close = torch.allclose(logprobs, torch.tensor(stay.logprobs), atol=1e-3)
    return bool(is_best.all()) and is_close


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("poisoned_on_hand_out")
@pytest.mark.parametrize(
    ("seed", "turns", "slabs"), [(11, 6, 3), pytest.param(11, 10, 8, marks=pytest.mark.slow)]
)
def test_every_token_is_of_the_version_it_names_while_slabs_leases_and_weights_change(
    models: tuple[Model, Model], seed: int, turns: int, slabs: int
) -> None:
    borrowed = Borrowed(models[0])
    twin = copy_of(borrowed.model)
    with borrowed.pair as pair:
        serving = Client(pair.serving, "serving", 3)
        chaos = Chaos(borrowed, seed=seed, turns=turns, slabs=slabs)
        lane = pair.serving_lane

        def serve() -> None:
            name = f"serving-{len(serving.asked) + 1}"
            lane.arrived(name, prompt_tokens=40)
            serving.send(prompt_tokens=40, new_tokens=4, on_finish=lambda: lane.finished(name))

        def take() -> None:
            lane.ensure(lane.kv.allocator.free_blocks + chaos.rng.randint(1, 60))

        def revoke() -> None:
            borrowed.worker.revoke()
            borrowed.worker.grant()

        borrowed.grant()
        idle = [chaos.listen] * 8
        chaos.run([serve, take, revoke, chaos.commit, pair.device.gate.abort_step, *idle])
        serving.wait()
        borrowed.worker.revoke()
        borrowed.received.wait_lease(lambda lease: lease.kv_tokens == 0)
        assert is_intact(borrowed.weights)
        assert pair.device.gave_back is None
        pair.rollout.stop()
        pair.device.arbiter.check_invariants()
        assert pair.device.arbiter.snapshot().quarantined == 0
    assert borrowed.received.faults == []
    assert serving.errors() == []
    assert serving.wrong(pair.serving_model) == []
    versions = {one for output in chaos.borrowed.received.of(TurnOutput) for one in output.versions}
    assert versions <= set(chaos.rows)
    assert len(versions) > 1
    assert [one.is_match for one in chaos.ends] == [True, True, False] * (_COMMITS // 3)
    for version, row in chaos.rows.items():
        rewrite(twin, row)
        assert all(
            is_what_it_would_generate(twin, stay) for stay in chaos.pure if stay.version == version
        )


def rewrite(model: Model, row: np.ndarray) -> None:
    """Give `model` the weights of a row of bits, tensor by tensor."""
    first = 0
    with torch.no_grad():
        for parameter in model.parameters():
            bits = row[first : first + parameter.numel()].astype(np.uint32) << 16
            parameter.copy_(torch.from_numpy(bits.view(np.float32)).view(parameter.shape))
            first += parameter.numel()
