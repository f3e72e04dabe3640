"""A driver that is killed at any step, with workers that live on, in virtual time.

Workers say true tokens: the one at a place of a context is a function of the trajectory's seed and
the place. What they say comes late, twice, out of order or not at all. Callers repeat whatever was
not answered; nobody but the files on the disk remembers anything for the scheduler.
"""

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from rose.scheduler import PlacementPolicy
from rose.scheduler.checks import tokens_of
from rose.scheduler.driver_events import (
    Begun,
    DriverStep,
    Ended,
    Entry,
    Registered,
    TrainerPublished,
    Used,
)
from rose.scheduler.driver_trajectory import SlowCopy
from rose.scheduler.durable import Durable
from rose.scheduler.events import Admit
from rose.scheduler.state import Gone, Outcome, SchedulerCheckpoint
from rose.scheduler.store_file import FileStore
from rose.scheduler.turns import Capabilities, Sampling, TurnResult
from rose.scheduler.versions import ANY
from rose.scheduler.watching import DriverWatch
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnRequest,
    VersionCommitted,
    WorkerEvent,
    WorkerKind,
    WorkerLost,
)
from rose.units import NS_PER_MS
from rose_lab.demo.environments.text import EOS
from tests.lab.demo.rl.play import logprob_at, token_at, version_at
from tests.lab.demo.rl.scripted_worker import ScriptedWorker
from tests.scheduler.tuned import tuned

SETTINGS = tuned(
    max_staleness=1,
    batch_trajectories=6,
    recall_grace_ms=60.0,
    retry_ms=80.0,
    attempts_max=1000,  # a trajectory that is dropped proves nothing about its tokens
    losses_max=1000,
    stall_ms=200.0,
    wait_max_ms=300.0,
)
SAMPLING = Sampling(max_new_tokens=12, temperature=1.0, stop_tokens=(EOS,))
CAPABILITIES = Capabilities(seats=3, prefill_tokens_per_s=1000.0, decode_step_ms=5.0)
TTL_MS = 250.0
TICKS_MAX = 4000
KINDS = (WorkerKind.DEDICATED, WorkerKind.BORROWED, WorkerKind.BORROWED)


class Killed(Exception):
    """The scheduler's process is gone."""


@dataclass
class ManualClock:
    now_ms: float = 1.0

    def now_ns(self) -> int:
        return round(self.now_ms * NS_PER_MS)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a scheduler must not sleep")


def turns_of(trajectory: int) -> int:
    return 1 + trajectory % 3


def truth(trajectory: int, prompt: tuple[int, ...], turn: int) -> TurnResult:
    """Return what a turn says wherever it runs; whoever ran it is left out."""
    tokens: list[int] = []
    while len(tokens) < SAMPLING.max_new_tokens and EOS not in tokens:
        tokens.append(token_at(trajectory, len(prompt) + len(tokens)))
    places = [len(prompt) + place for place in range(len(tokens))]
    return TurnResult(
        trajectory=trajectory,
        turn=turn,
        tokens=tuple(tokens),
        logprobs=tuple(logprob_at(trajectory, place) for place in places),
        versions=tuple(version_at(trajectory, place) for place in places),
        workers=(),
        is_cut=EOS not in tokens,
    )


def first_prompt(trajectory: int) -> tuple[int, ...]:
    return tuple(1 + (trajectory + place) % 50 for place in range(5 + trajectory % 4))


def next_prompt(prompt: tuple[int, ...], said: TurnResult) -> tuple[int, ...]:
    heard = tuple(60 + (len(prompt) + place) % 30 for place in range(3))
    # Some frameworks write their prompts anew: what was read may change at the next turn.
    begins = prompt if said.trajectory % 4 else (99, *prompt[1:])
    return (*begins, *said.tokens, *heard)


@dataclass
class Caller:
    """The program of one trajectory; what it has not been answered it says again."""

    trajectory: int
    turn: int = 0
    prompt: tuple[int, ...] = ()
    is_admitted: bool = False
    is_asking: bool = False
    is_over: bool = False
    gives_up_after_ms: float | None = None

    def entry(self, durable: Durable) -> Entry | None:
        """Return what it says now, as ElasticRolloutScheduler would note it."""
        rollouts = durable.rollouts
        if self.trajectory in rollouts.state.used:
            self.is_over = True
            return None
        state = rollouts.state.trajectories.get(self.trajectory)
        if state is None:
            return Begun(self.trajectory, self.trajectory // 4, 0, self.trajectory)
        if not state.record().is_admitted:
            return None
        if self.turn == turns_of(self.trajectory):
            return Ended(self.trajectory, is_wanted=True)
        if self.turn < len(state.turns):
            self.receive(state.turns[self.turn])
            return self.entry(durable)
        return state.asked(self.turn, tokens_of("prompt", self.prompt), SAMPLING, ANY)

    def receive(self, result: TurnResult) -> None:
        assert result.turn == self.turn
        expected = truth(self.trajectory, self.prompt, self.turn)
        for field in ("tokens", "logprobs", "versions", "is_cut"):
            assert getattr(result, field) == getattr(expected, field), field
        self.prompt = next_prompt(self.prompt, result)
        self.turn += 1


class MortalStore(FileStore):
    """A store whose process can be killed before or after a step was written."""

    kill_at: str | None = None

    def append(self, step: DriverStep) -> None:
        if self.kill_at == "before":
            raise Killed
        super().append(step)
        if self.kill_at == "after":
            raise Killed

    def save(self, checkpoint: SchedulerCheckpoint) -> None:
        if self.kill_at == "unsaved":
            raise Killed
        super().save(checkpoint)


class DeadEpochs(DriverWatch):
    """Fails when a turn is started under a lease that was heard to be over."""

    def __init__(self, last: dict[int, int]) -> None:
        self.last = last  # by worker: the newest epoch that was heard
        self.revoked: set[tuple[int, int]] = set()

    def received(self, entry: Entry) -> None:
        if isinstance(entry, GrantChanged):
            newest = max(self.last.get(entry.worker, 0), entry.grant_epoch)
            self.last[entry.worker] = newest
            if entry.kv_tokens == 0 and entry.grant_epoch == newest:
                self.revoked.add((entry.worker, newest))

    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        assert request.grant_epoch == self.last[worker]
        assert (worker, request.grant_epoch) not in self.revoked


class DriverWorld:
    def __init__(
        self,
        path: Path,
        seed: int,
        *,
        trajectories: int,
        faults: float = 1.0,
        policy: PlacementPolicy = PlacementPolicy.JOINT,
    ) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.path = path
        self.policy = policy
        self.clock = ManualClock()
        self.callers = [
            Caller(number, prompt=first_prompt(number)) for number in range(trajectories)
        ]
        for caller in self.callers[4::9]:
            caller.gives_up_after_ms = self.random.uniform(1, 1500)
        self.mail: list[tuple[float, int, WorkerEvent]] = []
        self.order = 0
        self.kills = self.ticks = self.slices = self.slow_checkpoints = 0
        self.epochs: dict[int, int] = {}
        self.workers: dict[int, ScriptedWorker] = {}
        self.versions: dict[int, int] = {}
        for kind in KINDS:
            self.bring(kind)
        self.outcomes: list[Outcome] = []
        self.begin_life()

    # ---- lives of the scheduler

    def begin_life(self) -> None:
        self.draft: tuple[SchedulerCheckpoint, SlowCopy] | None = None
        self.store = MortalStore(self.path)
        self.durable = Durable(
            SETTINGS,
            self.policy,
            clock=self.clock,
            store=self.store,
            watches=[DeadEpochs(self.epochs)],
        )
        self.durable.open()
        # Workers come back in their own time, some of them not soon enough.
        self.away = {
            number: self.clock.now_ms + self.random.uniform(0, 40)
            for number, worker in self.workers.items()
            if worker.is_up
        }

    def die(self) -> None:
        """Lose everything but the files, and what was on its way."""
        self.kills += 1
        self.store.close()
        del self.durable
        if self.random.random() < 0.5:
            self.mail.clear()
        self.begin_life()

    # ---- workers

    def chance(self, odds: float) -> bool:
        return self.random.random() < odds * self.faults

    def bring(self, kind: WorkerKind) -> None:
        number = len(self.workers)
        ttl_ms = TTL_MS if kind is WorkerKind.BORROWED else 0.0
        self.workers[number] = ScriptedWorker(number, kind, self.report, ttl_ms=ttl_ms)
        self.away = {**getattr(self, "away", {}), number: self.clock.now_ms}

    def report(self, event: WorkerEvent) -> None:
        if self.workers[event.worker].kind is WorkerKind.BORROWED and self.chance(0.03):
            return
        for _ in range(2 if self.chance(0.1) else 1):
            self.order += 1
            late_ms = self.random.randint(1, 50) if self.chance(0.2) else 0
            self.mail.append((self.clock.now_ms + late_ms, self.order, event))

    def live(self, worker: ScriptedWorker) -> None:
        if self.chance(0.004):
            worker.is_up = False
            worker.running.clear()
            self.away.pop(worker.number, None)
            self.report(WorkerLost(worker.number, "killed"))
            self.order += 1
            self.mail.append((self.clock.now_ms, self.order, WorkerLost(worker.number, "killed")))
            self.bring(worker.kind)
            return
        published = self.durable.rollouts.state.counts.job(0).published
        if self.versions.get(worker.number, 0) < published and self.random.random() < 0.2:
            self.versions[worker.number] = published
            self.report(VersionCommitted(worker.number, published, True, 1.0))
        if worker.kv_tokens == 0:
            if self.random.random() < 0.2:
                worker.grant()
            return
        if self.chance(0.02):
            worker.revoke()
        elif worker.running and self.chance(0.03):
            worker.leave(self.random.choice(list(worker.running)), TurnEnd.INTERRUPTED)
        elif not self.chance(0.05):
            worker.report_grant()
        for trajectory in list(worker.running):
            if self.chance(0.02):
                worker.leave(trajectory, TurnEnd.FAILED)
            else:
                worker.output(trajectory, self.random.randint(0, 4), with_end=not self.chance(0.2))

    # ---- a tick

    def tick(self, kill_at: str | None = None) -> None:
        """Let time go; the scheduler is killed `before`, `after` the step is written, or `behind`
        all that it does, or `unsaved`, before a checkpoint is on the disk."""
        self.clock.now_ms += self.random.randint(1, 15)
        for worker in list(self.workers.values()):
            if worker.is_up:
                self.live(worker)
        self.ticks += 1
        assert self.ticks < TICKS_MAX, "it does not get there"
        self.store.kill_at = kill_at
        try:
            self.step()
            self.save(is_now=kill_at == "unsaved")
            if kill_at == "behind":
                raise Killed
        except Killed:
            self.die()

    def save(self, *, is_now: bool) -> None:
        """Make a little more of a checkpoint: steps come between."""
        if self.draft is None and (is_now or self.durable.is_checkpoint_due()):
            self.draft = self.durable.begin_checkpoint()
            self.slices = 0
        if self.draft is None:
            return
        while not self.draft[1].advance():
            self.slices += 1
            if not is_now:
                return
        draft, self.draft = self.draft, None
        self.durable.save(*draft)
        self.slow_checkpoints += self.slices > 3

    def step(self) -> None:
        for take in self.news():
            take()
        for outcome in self.durable.step():
            match outcome:
                case Admit():
                    self.callers[outcome.trajectory].is_admitted = True
                case Gone():
                    assert self.callers[outcome.trajectory].gives_up_after_ms is not None

    def news(self):
        """Yield what takes one thing after the other in."""
        back = [number for number, at_ms in self.away.items() if at_ms <= self.clock.now_ms]
        for number in back:
            del self.away[number]
            worker = self.workers[number]
            yield partial(self.register, worker)
        due = sorted(one for one in self.mail if one[0] <= self.clock.now_ms)
        self.mail = [one for one in self.mail if one[0] > self.clock.now_ms]
        for *_, event in due:
            if event.worker not in self.away:
                yield partial(self.receive, event)
        for caller in self.callers:
            if not caller.is_over:
                yield partial(self.speak, caller)
        yield self.train
        yield self.publish

    def register(self, worker: ScriptedWorker) -> None:
        can = replace(CAPABILITIES, version=self.versions.get(worker.number, 0))
        worker.running.clear()  # Its stream ended with the life before.
        self.durable.take(Registered(worker.number, worker.kind, can), worker)
        worker.report_grant()

    def receive(self, event: WorkerEvent) -> None:
        self.durable.receive(event)

    def speak(self, caller: Caller) -> None:
        patience_ms = caller.gives_up_after_ms
        state = self.durable.rollouts.state
        if (
            patience_ms is not None
            and patience_ms < self.clock.now_ms
            and caller.trajectory in state.trajectories
        ):
            entry: Entry | None = Ended(caller.trajectory, is_wanted=False)
        else:
            entry = caller.entry(self.durable)
        if entry is not None:
            self.durable.take(entry)

    def train(self) -> None:
        counts = self.durable.rollouts.state.counts.job(0)
        left = counts.finished - counts.consumed
        is_last = not any(not caller.is_over for caller in self.callers)
        if left == 0 or (left < SETTINGS.batch_trajectories and not is_last):
            # What was given up is not trained on, so batches may stay short.
            under_way = self.durable.rollouts.state.trajectories.values()
            if left == 0 or any(state.record().is_admitted for state in under_way):
                return
        self.durable.take(Used(min(left, SETTINGS.batch_trajectories)))

    def publish(self) -> None:
        counts = self.durable.rollouts.state.counts.job(0)
        version = counts.consumed // SETTINGS.batch_trajectories
        if version > counts.published:
            self.durable.take(TrainerPublished(version))

    # ---- the end

    def is_done(self) -> bool:
        return all(caller.is_over for caller in self.callers)

    def assert_accounted(self) -> None:
        """Hold the books of the scheduler against what the callers saw."""
        counts, stats = self.durable.rollouts.state.counts, self.durable.rollouts.stats()
        assert counts.begun == len(self.callers)
        assert counts.dropped == 0
        assert counts.begun == counts.finished + counts.given_up
        whole = [caller for caller in self.callers if caller.turn == turns_of(caller.trajectory)]
        impatient = [one for one in self.callers if one.gives_up_after_ms is not None]
        assert counts.given_up <= len(impatient)
        assert len(whole) >= counts.finished >= len(self.callers) - len(impatient)
        assert (stats.queued, stats.running, stats.recalled, stats.waiting) == (0, 0, 0, 0)
        assert stats.environment == 0
        assert not any(worker.running for worker in self.workers.values() if worker.is_up)
