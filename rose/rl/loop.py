"""The rollout loop: environments ask, the scheduler places, workers say, trajectories come out.

One thread owns all of it. Workers and watchers only put news into its inbox, so nothing that
serves traffic ever waits for it.
"""

import heapq
import math
import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from rose.clock import Clock
from rose.environments import Tokenizer
from rose.environments.text import EOS
from rose.errors import DeadlineExceeded, InvalidArgument, RoseError, check
from rose.rl.flight import Flight
from rose.rl.groups import Groups
from rose.rl.parts import Parts
from rose.rl.trajectory import TRAJECTORY_TOKENS_MAX, Trajectory
from rose.scheduler import SchedulerCore, SchedulerStats, driver
from rose.scheduler.events import (
    Consumed,
    DropReason,
    Event,
    Start,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnReady,
    VersionPublished,
    WorkerJoined,
)
from rose.scheduler.hearsay import believable
from rose.scheduler.worker import (
    LeaseChanged,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    Worker,
    WorkerEvent,
    WorkerLost,
)
from rose.thread import Thread, nothing_rests_on_it
from rose.units import NS_PER_S

# Leases run out and stalls are seen at steps of the core: this often, when nothing else happens.
_TICK_S: Final = 0.05
_JOIN_S: Final = 10.0

News: TypeAlias = WorkerEvent | VersionPublished | Consumed | WorkerJoined


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What trajectories are made of.

    Args:
        in_flight: trajectories that are started and not finished, > 0.
        group_size: trajectories that share a task, > 0.
        turn_tokens_max: a turn is cut there, > 0.
        context_tokens_max: a trajectory ends before its context grows beyond this.
        temperature: of sampling, >= 0.
    """

    in_flight: int
    group_size: int
    turn_tokens_max: int
    context_tokens_max: int
    temperature: float

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("in_flight", "group_size", "turn_tokens_max", "context_tokens_max"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.context_tokens_max > TRAJECTORY_TOKENS_MAX:
            raise InvalidArgument(
                f"context_tokens_max is {self.context_tokens_max}: no trajectory of over "
                f"{TRAJECTORY_TOKENS_MAX} tokens is learned from"
            )
        if not 0 <= self.temperature < math.inf:
            raise InvalidArgument(f"temperature must be >= 0, not {self.temperature}")


@dataclass(frozen=True, slots=True)
class LoopCounts:
    """What became of the trajectories; `started = finished + dropped + in_flight + lost`.

    Args:
        started: those that were given a task.
        finished: those that were handed on.
        dropped: those that the scheduler gave up, which it says.
        in_flight: those that are still on their way.
        resumed: those with a turn that one worker began and another, or a later one, ended.
        lost: those of which nobody knows where they are: always 0.
    """

    started: int
    finished: int
    dropped: int
    in_flight: int
    resumed: int
    lost: int


class RolloutLoop:
    """Keeps `in_flight` trajectories going until it is stopped.

    Args:
        core: decides; the loop is its only caller.
        make_flight: `(number, group)` to a trajectory whose environment is reset and whose first
            observation was heard.
        wait_s: `(trajectory, turn)` to how long the tool of that turn takes.
        tokenizer: between token ids and what environments say and hear.
        on_finished: takes each finished trajectory in the loop's thread; it must not wait.
        settings: of the trajectories.
        clock: where time comes from.
        on_event: hears every event of a worker, in the loop's thread; it must not wait.
    """

    def __init__(
        self,
        core: SchedulerCore,
        *,
        make_flight: Callable[[int, int], Flight],
        wait_s: Callable[[int, int], float],
        tokenizer: Tokenizer,
        on_finished: Callable[[Trajectory], None],
        settings: LoopSettings,
        clock: Clock,
        on_event: Callable[[WorkerEvent], None] = lambda _event: None,
    ) -> None:
        self.parts = Parts(clock)
        self.error: RoseError | None = None
        self._core = core
        self._driver = driver.CoreDriver(core, self, self.parts)
        self._make_flight = make_flight
        self._wait_s = wait_s
        self._tokenizer = tokenizer
        self._on_finished = on_finished
        self._on_event = on_event
        self._settings = settings
        self._clock = clock
        self._inbox: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        self._flights: dict[int, Flight] = {}
        self._tool_waits: list[tuple[int, int]] = []
        self._groups = Groups(settings.group_size)
        self._next = 0
        self._counts: Counter[str] = Counter()
        self._is_stopping = False
        self._has_ended = False
        self._thread = Thread(
            self._run, name="rose-rollouts", on_failure=nothing_rests_on_it, daemon=False
        )

    # ---- any thread -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, worker: Worker, joined: WorkerJoined) -> None:
        """Add a worker under a number that no other has had; its lease comes as news."""
        check(worker.number == joined.worker, "a worker joins under another's number")
        self._driver.join(worker)
        self._inbox.put(joined)

    def tell(self, news: News) -> None:
        """Hear of something; never waits, so it may be called from an engine's loop."""
        self._inbox.put(news)

    def stop(self) -> None:
        """End the thread; turns in flight are stopped, and their trajectories stay unfinished.

        Raises:
            DeadlineExceeded: the thread does not end.
        """
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout=_JOIN_S)
            if self._thread.is_alive():
                raise DeadlineExceeded(f"the rollouts have not ended after {_JOIN_S:g} s")

    def stats(self) -> SchedulerStats:
        """Return the scheduler's own books; exact once the loop is stopped."""
        return self._core.stats()

    @property
    def has_died(self) -> bool:
        """Whether the thread has ended without being told to."""
        return self._has_ended and not self._is_stopping

    def counts(self) -> LoopCounts:
        """Return what became of the trajectories so far; exact once the loop is stopped."""
        finished, dropped = self._counts["finished"], self._counts["dropped"]
        in_flight = len(self._flights)
        return LoopCounts(
            started=self._counts["started"],
            finished=finished,
            dropped=dropped,
            in_flight=in_flight,
            resumed=self.parts.resumed,
            lost=self._counts["started"] - finished - dropped - in_flight,
        )

    # ---- the loop's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._advance(self._gather())
        except RoseError as error:
            self.error = error
        finally:
            for number in self._flights:
                for worker in self._driver.attached():
                    self._driver.stop(worker, number)
            self._has_ended = True

    def _gather(self) -> list[News]:
        """Wait for news, a tool that is done or the next tick, then take all there is."""
        timeout_s = _TICK_S
        if self._tool_waits:
            due_s = (self._tool_waits[0][0] - self._clock.now_ns()) / NS_PER_S
            timeout_s = min(max(due_s, 0.0), _TICK_S)
        gathered: list[News] = []
        try:
            news = self._inbox.get(timeout=timeout_s)
            while True:
                if news is None:
                    self._is_stopping = True
                else:
                    gathered.append(news)
                news = self._inbox.get_nowait()
        except queue.Empty:
            return gathered

    def _advance(self, gathered: Iterable[News]) -> None:
        """Step the core with what happened, with tools that are done and with new trajectories."""
        news: list[driver.News] = []
        for one in gathered:
            if not isinstance(one, TurnOutput | LeaseChanged | VersionCommitted | WorkerLost):
                news.append(one)
                continue
            heard = believable(one)
            if heard is None:
                self._driver.nonsense += 1
                continue
            self._on_event(heard)
            news.append(heard)
        news += self._tools_done()
        news += self._new_trajectories()
        self._driver.advance(news, self._clock.now_ns())

    def _tools_done(self) -> list[TurnReady]:
        ready: list[TurnReady] = []
        now_ns = self._clock.now_ns()
        while self._tool_waits and self._tool_waits[0][0] <= now_ns:
            _, number = heapq.heappop(self._tool_waits)
            ready.append(self._ready(self._flights[number]))
        return ready

    def _new_trajectories(self) -> list[TrajectoryCreated]:
        created: list[TrajectoryCreated] = []
        while len(self._flights) < self._settings.in_flight and not self._is_stopping:
            number, self._next = self._next, self._next + 1
            group = self._groups.take()
            self._flights[number] = self._make_flight(number, group)
            self._counts["started"] += 1
            created.append(TrajectoryCreated(trajectory=number, group=group))
        return created

    def _ready(self, flight: Flight) -> TurnReady:
        room = self._settings.context_tokens_max - len(flight.tokens)
        return TurnReady(
            trajectory=flight.number,
            turn=flight.turn,
            context_tokens=len(flight.tokens),
            # Whatever it heard first, it may answer.
            max_new_tokens=max(1, min(self._settings.turn_tokens_max, room)),
        )

    # ---- what the driver asks and says ----------------------------------------------------------

    def refused(self, news: TurnOutput | WorkerLost) -> None:
        """Hear of it as if the worker had said so."""
        self._inbox.put(news)

    def admitted(self, trajectory: int) -> Iterator[Event]:
        """Let the first turn begin."""
        yield self._ready(self._flight(trajectory))

    def said(self, trajectory: int) -> list[int]:
        """Return the tokens of the present turn."""
        return self._flight(trajectory).said

    def has_ended(self, trajectory: int) -> bool:
        """Whether the present turn has its last token."""
        said = self._flight(trajectory).said
        return bool(said) and said[-1] == EOS

    def request(self, start: Start) -> TurnRequest:
        """Return the turn as its worker is asked to run it."""
        flight = self._flight(start.trajectory)
        return TurnRequest(
            trajectory=flight.number,
            turn=flight.turn,
            lease_epoch=start.lease_epoch,
            prompt=tuple(flight.tokens),
            first_token=start.first_token,
            max_new_tokens=start.max_new_tokens,
            stop_tokens=(EOS,),
            temperature=self._settings.temperature,
            seed=flight.sampling_seed,
        )

    def say(
        self,
        trajectory: int,
        tokens: tuple[int, ...],
        logprobs: tuple[float, ...],
        versions: tuple[int, ...],
    ) -> None:
        """Add tokens to the present turn."""
        self._flight(trajectory).say(tokens, logprobs, versions)

    def turn_done(self, trajectory: int) -> Iterator[Event]:
        """Let the environment answer."""
        yield from self._answer(self._flight(trajectory))

    def dropped(self, trajectory: int, _reason: DropReason) -> Iterable[Event]:
        """Let another trajectory have the task."""
        flight = self._flight(trajectory)
        self.parts.close(flight.number)
        self._counts["dropped"] += 1
        self._groups.give_back(flight.group)
        del self._flights[flight.number]
        return ()

    def _flight(self, trajectory: int) -> Flight:
        check(trajectory in self._flights, "the core acts on a trajectory that is over")
        return self._flights[trajectory]

    def _answer(self, flight: Flight) -> Iterator[Event]:
        """Let the environment answer what was said, and go on after its tool, or end."""
        self.parts.close(flight.number)
        step = flight.environment.step(self._tokenizer.decode(flight.said))
        flight.reward += step.reward
        observation = self._tokenizer.prompt(step.observation)
        room = self._settings.context_tokens_max - self._settings.turn_tokens_max
        if step.is_over or len(flight.tokens) + len(observation) > room:
            del self._flights[flight.number]
            self._counts["finished"] += 1
            self._on_finished(flight.finished())
            yield TrajectoryEnded(trajectory=flight.number)
            return
        wait_s = 0.0 if step.tool is None else self._wait_s(flight.number, flight.turn)
        flight.hear(observation)
        flight.turn += 1
        wait_ns = int(wait_s * NS_PER_S)
        heapq.heappush(self._tool_waits, (self._clock.now_ns() + wait_ns, flight.number))
