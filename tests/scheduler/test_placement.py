"""The core's choice is the plain argmin of tests/reference, for every policy and state."""

import random
from dataclasses import dataclass
from functools import partial

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rose.scheduler import PlacementPolicy
from rose.scheduler.core import SchedulerCore
from rose.scheduler.events import (
    Admit,
    Event,
    GrantChanged,
    Start,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnDone,
    TurnEnded,
    TurnProgress,
    TurnReady,
    VersionCommitted,
    VersionPublished,
    WorkerJoined,
)
from rose.scheduler.worker import TurnEnd, WorkerKind
from rose.units import NS_PER_MS
from tests.reference.outlook import PlainMean, PlainOutlook
from tests.reference.scheduler import PlainPace, PlainTurn, PlainWorker, choose, urgency
from tests.scheduler.tuned import tuned, values_of


@dataclass
class Plain:
    """A trajectory as the reference knows it."""

    number: int
    group: int
    started_ms: int
    version_min: int
    said: int = 0
    turn_ms: int = 0
    turn_left: float = 0.0
    life_s: float = 0.0
    turn: int = 0
    context: int = 0
    max_new: int = 0
    known: int = 0
    on: int | None = None
    run_version: int = 0
    run_ms: int = 0  # when it began there
    run_known: int = 0  # tokens that it had then
    foreseen_s: tuple[float, float] = (0.0, 0.0)  # until its first token then, and for each
    home: tuple[int, int, int, int] | None = None  # worker, epoch, version, cached tokens
    is_computed: bool = False  # whether the worker where it runs has what home says
    avoid: tuple[int, int, int] | None = None  # worker, epoch, until


class Twins:
    """The core and the reference, told the same; never more than one turn waits."""

    def __init__(self, seed: int, policy: PlacementPolicy) -> None:
        self.rng = random.Random(seed)
        self.mean_pace = PlainPace()
        self.policy = policy
        settings = tuned(
            max_staleness=self.rng.randint(0, 3),
            batch_trajectories=1000,
            worker_lag_max=self.rng.randint(0, 2),
            retry_ms=50.0,
            stall_ms=1e9,
            wait_max_ms=1e9,
            tail_seats=self.rng.choice([0.5, 1.0, 4.0]),
            urgent_time_weight=self.rng.choice([0.0, 1.0, 3.0]),
            urgent_risk_weight=self.rng.choice([0.0, 1.0, 3.0]),
            staleness_s_per_version=self.rng.choice([0.0, 0.5]),
            leave_home_margin_s=self.rng.choice([0.0, 0.1, 1.0]),
            hazard_per_s=self.rng.choice([0.0, 0.02, 1.0]),
            hazard_prior_s=1e9,  # what is seen does not count: the reference knows no time
            hold_min_ms=0.0,
            requeue_ms=self.rng.choice([0.0, 500.0]),
            turn_tokens_prior=20.0,
            turns_prior=2.0,
            job_weight=self.rng.choice([0.5, 2.0]),
            turn_window=4,
            reserve_quantile=1.0,
            displaced_share=1.0,  # the reference admits at once
            cache_wait_ms=self.rng.choice([0.0, 1e9]),
            move_contexts=self.rng.choice([0.0, 0.5, 1.0, 2.0]),
            pace_rate=self.rng.choice([0.0, 0.1, 0.9]),
        )
        self.settings = values_of(settings)
        self.outlook = PlainOutlook(self.settings)
        self.contexts = PlainMean(0.0, self.settings.turn_window)
        self.core = SchedulerCore(settings, policy)
        self.now_ms = 1
        self.published = 0
        self.published_ms = 0
        self.workers: dict[int, PlainWorker] = {}
        self.live: dict[int, Plain] = {}
        self.next = 0
        self.choices: list[int | None] = []
        numbers = self.rng.sample(range(20), self.rng.randint(1, 8))
        for number in numbers:
            self.join(number)

    def step(self, *events: Event) -> list[object]:
        return list(self.core.step(events, self.now_ms * NS_PER_MS))

    def join(self, number: int) -> None:
        rng = self.rng
        worker = PlainWorker(
            number,
            rng.choice(list(WorkerKind)),
            seats=rng.randint(1, 6),
            prefill_tokens_per_s=rng.choice([500.0, 1000.0, 3000.0]),
            # No two alike: leases that ended say a billionth of something, which breaks a tie.
            decode_step_ms=rng.choice([5.0, 20.0]) + number / 1000,
            decode_ms_per_sequence=rng.choice([0.0, 1.0, 4.0]),
            decode_ms_per_context_token=rng.choice([0.0, 0.01, 0.1]),
            version=rng.randint(0, 2),
        )
        self.workers[number] = worker
        self.step(
            WorkerJoined(
                *(number, worker.kind, 0, worker.seats, worker.prefill_tokens_per_s),
                *(worker.decode_step_ms, worker.decode_ms_per_sequence, worker.version),
                decode_ms_per_context_token=worker.decode_ms_per_context_token,
            )
        )
        if rng.random() < 0.8:
            self.change_lease(worker)

    def change_lease(self, worker: PlainWorker) -> None:
        """Resize it, or renew it under a new epoch when nothing runs there."""
        if not worker.needs and (worker.epoch == 0 or self.rng.random() < 0.3):
            worker.epoch += 1
            worker.caches.clear()
        elif worker.epoch == 0:
            return
        worker.kv_tokens = sum(worker.needs.values()) + self.rng.randint(1, 800)
        worker.forget()
        assert not self.step(GrantChanged(worker.number, worker.epoch, worker.kv_tokens, 0.0))

    # ---- one turn that wants a worker

    def expected(self, plain: Plain) -> int | None:
        home, epoch, version, cached = plain.home or (None, 0, 0, 0)
        worker = self.workers.get(home) if home is not None else None
        is_warm = (
            worker is not None
            and (worker.epoch, worker.version) == (epoch, version)
            and plain.number in worker.caches
        )
        prompt = plain.context + plain.known
        avoid = None
        if plain.avoid is not None:
            number, at_epoch, until_ms = plain.avoid
            is_same = self.workers[number].epoch == at_epoch
            avoid = number if self.now_ms < until_ms and is_same else None
        lag = self.outlook.lag(plain.life_s)
        turn = PlainTurn(
            need_tokens=plain.context + plain.max_new,
            prompt_tokens=prompt,
            expected_tokens=min(plain.max_new - plain.known, plain.turn_left),
            urgency=urgency(
                lag=lag,
                versions_old=self.published - plain.version_min,
                live=len(self.live),
                free_seats=sum(
                    worker.seats - len(worker.needs)
                    for worker in self.workers.values()
                    if worker.kv_tokens > 0
                ),
                settings=self.settings,
            ),
            version_min=plain.version_min,
            home=home,
            cached_tokens=min(cached, prompt) if is_warm else 0,
            avoid=avoid,
            spares_caches=self.settings.cache_wait_ms > 0,
            end_tokens=self.contexts.mean,
        )
        return choose(
            self.policy,
            list(self.workers.values()),
            turn,
            published=self.published,
            since_published_s=(self.now_ms - self.published_ms) / 1000,
            settings=self.settings,
        )

    def place(self, number: int, event: Event) -> None:
        """Tell the core what makes a turn want a worker, and compare the choices."""
        plain = self.live[number]
        self.expect(plain)
        due = self.expected(plain)
        actions = self.step(event)
        starts = [action for action in actions if isinstance(action, Start)]
        assert [start.worker for start in starts] == ([] if due is None else [due])
        self.choices.append(due)
        if due is None:
            self.leave_cache(plain)
            del self.live[number]
            self.step(TrajectoryEnded(number))
            self.outlook.set_life(number, None)
            self.outlook.leave(plain.group)
            return
        worker = self.workers[due]
        home = plain.home
        is_warm = home is not None and home[0] == due and number in worker.caches
        self.leave_cache(plain)
        prompt = plain.context + plain.known
        plain.on, plain.run_version, plain.is_computed = due, worker.version, is_warm
        worker.needs[number] = plain.context + plain.max_new
        worker.forget()
        worker.backlog[number] = prompt - (min(home[3], prompt) if is_warm else 0)
        plain.run_ms, plain.run_known = self.now_ms, plain.known
        plain.foreseen_s = worker.foreseen_s()

    def expect(self, plain: Plain) -> None:
        plain.turn_left, left_s = self.outlook.forecast(
            plain.group, known=plain.known, said=plain.said, turns=plain.turn
        )
        plain.life_s = (self.now_ms - plain.started_ms) / 1000 + left_s
        self.outlook.set_life(plain.number, plain.life_s)

    def ready(self, number: int) -> None:
        plain = self.live[number]
        if plain.turn > 0:
            self.outlook.observe("tool_ms", plain.group, self.now_ms - plain.turn_ms)
        plain.turn_ms = self.now_ms
        plain.context += self.rng.randint(0, 200)
        plain.max_new, plain.known, plain.avoid = self.rng.randint(1, 60), 0, None
        self.place(number, TurnReady(number, plain.turn, plain.context, plain.max_new))

    def leave(self, plain: Plain, number: int) -> None:
        worker = self.workers[plain.on]
        del worker.needs[number]
        worker.backlog.pop(number, None)
        plain.on = None
        is_home = plain.home and plain.home[:3] == (worker.number, worker.epoch, worker.version)
        if is_home and plain.is_computed:
            worker.caches[number] = plain.home[3]

    def leave_cache(self, plain: Plain) -> None:
        if plain.home is not None:
            self.workers[plain.home[0]].caches.pop(plain.number, None)

    def note_pace(self, plain: Plain, worker: PlainWorker) -> None:
        """A turn that ends teaches how fast its worker is, if it said anything there."""
        said = plain.known - plain.run_known
        wait_s, token_s = plain.foreseen_s
        if said > 0:
            took_s = (self.now_ms - plain.run_ms) / 1000
            foreseen_s = wait_s + said * token_s
            worker.observe_pace(took_s, foreseen_s, self.settings.pace_rate, self.mean_pace)

    # ---- what may happen

    def create(self) -> None:
        number, self.next = self.next, self.next + 1
        group = self.rng.randrange(3)
        assert self.step(TrajectoryCreated(number, group)) == [Admit(number)]
        self.live[number] = Plain(number, group, self.now_ms, self.published)
        self.outlook.enter(group)
        self.expect(self.live[number])
        self.ready(number)

    def progress(self, number: int) -> None:
        plain = self.live[number]
        worker = self.workers[plain.on]
        news = min(self.rng.randint(1, 9), plain.max_new - plain.known - 1)
        if news <= 0:
            return
        version = self.rng.randint(0, 3)
        event = TurnProgress(
            *(number, plain.turn, worker.number, worker.epoch, plain.known, news, version, version)
        )
        assert len(self.step(event)) == 1
        plain.known += news
        plain.said += news
        plain.version_min = min(plain.version_min, version)
        worker.backlog.pop(number, None)
        plain.home = (
            *(worker.number, worker.epoch, plain.run_version),
            plain.context + plain.known,
        )
        plain.is_computed = True

    def finish(self, number: int) -> None:
        plain = self.live[number]
        worker = self.workers[plain.on]
        end = TurnEnded(number, plain.turn, worker.number, worker.epoch, TurnEnd.FINISHED)
        assert self.step(end)[-1] == TurnDone(number, plain.turn)
        self.note_pace(plain, worker)
        self.leave(plain, number)
        seconds = (self.now_ms - plain.turn_ms) / 1000
        self.outlook.observe_turn(plain.group, plain.known, seconds)
        plain.turn_ms = self.now_ms
        plain.context += plain.known
        plain.turn += 1

    def end(self, number: int) -> None:
        plain = self.live.pop(number)
        self.leave_cache(plain)
        self.contexts.observe(plain.context)
        self.step(TrajectoryEnded(number))
        self.outlook.observe("tokens", plain.group, plain.said)
        self.outlook.observe("turns", plain.group, plain.turn)
        self.outlook.set_life(number, None)
        self.outlook.leave(plain.group)

    def interrupt(self, number: int) -> None:
        plain = self.live[number]
        worker = self.workers[plain.on]
        self.leave(plain, number)
        plain.avoid = (worker.number, worker.epoch, self.now_ms + 50)
        end = TurnEnded(number, plain.turn, worker.number, worker.epoch, TurnEnd.INTERRUPTED)
        self.place(number, end)

    def publish(self) -> None:
        self.published += 1
        self.published_ms = self.now_ms
        assert not self.step(VersionPublished(self.published))

    def commit(self, worker: PlainWorker) -> None:
        version = self.rng.randint(max(0, self.published - 2), self.published)
        before, worker.version = worker.version, version
        if version != before:
            worker.caches.clear()
        if before < version == self.published:
            worker.commit_s = (self.now_ms - self.published_ms) / 1000
        assert not self.step(VersionCommitted(worker.number, worker.version))

    def happen(self) -> None:
        self.now_ms += self.rng.randint(0, 40)
        running = [number for number, plain in self.live.items() if plain.on is not None]
        idle = [number for number, plain in self.live.items() if plain.on is None]
        moves = [self.create, self.happen_to_worker, self.happen_to_worker]
        if running:
            number = self.rng.choice(running)
            moves += [partial(move, number) for move in (self.progress, self.finish) * 2]
            moves += [partial(self.interrupt, number)]
        if idle:
            moves += [partial(self.ready, self.rng.choice(idle))] * 3
            moves += [partial(self.end, self.rng.choice(idle))]
        self.rng.choice(moves)()

    def happen_to_worker(self) -> None:
        worker = self.rng.choice(list(self.workers.values()))
        move = self.rng.choice([self.change_lease, self.commit, lambda _: self.publish()])
        move(worker)


@pytest.mark.parametrize("policy", PlacementPolicy)
@given(seed=st.integers(0, 2**32 - 1))
def test_choice_is_the_plain_argmin(policy: PlacementPolicy, seed: int) -> None:
    twins = Twins(seed, policy)
    for _ in range(60):
        twins.happen()


def test_the_states_leave_something_to_choose() -> None:
    choices: list[int | None] = []
    for seed in range(10):
        twins = Twins(seed, PlacementPolicy.JOINT)
        for _ in range(60):
            twins.happen()
        choices += twins.choices
    assert len(set(choices)) > 5
    assert 0.02 < choices.count(None) / len(choices) < 0.6
