"""All trajectories of a scheduler, and the core that places them.

What happens here follows from what it is told and when alone: told the same again, it is in the
same state. A journal depends on it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from rose.errors import InternalError, InvalidArgument
from rose.scheduler.coerce import COUNT_MAX, count
from rose.scheduler.copying import SlowCopy
from rose.scheduler.course import Course, Phase
from rose.scheduler.driver import Core, CoreDriver, News, Watch
from rose.scheduler.events import (
    Admit,
    Consumed,
    DropReason,
    Event,
    JobJoined,
    SchedulerStats,
    Start,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnEnded,
    TurnReady,
    VersionPublished,
)
from rose.scheduler.front_events import Asked, Begun, Ended, Entry, Registered, RunningTurn
from rose.scheduler.numbers import UsedNumbers
from rose.scheduler.turns import TurnResult
from rose.scheduler.worker import (
    LeaseChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    Worker,
    WorkerLost,
)

# As in csrc/scheduler/batch_check.cpp: what the core would refuse is refused before it is noted.
_STALENESS_MAX: Final = 1 << 20
_TOTAL_MAX: Final = 1 << 60
_WEIGHT_MIN: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Gone:
    """Nobody will have a trajectory.

    Args:
        trajectory: which.
        reason: why.
        error: what the last worker that failed to run a turn of it said.
    """

    trajectory: int
    reason: DropReason
    error: str | None = None


Outcome: TypeAlias = Admit | TurnResult | Gone


@dataclass(slots=True)
class JobCounts:
    """What became of trajectories of one job, for its trainer.

    Args:
        finished: handed on to its trainer.
        consumed: of them, by its trainer.
        published: its newest version.
    """

    finished: int = 0
    consumed: int = 0
    published: int = 0


@dataclass(slots=True)
class FrontCounts:
    """What became of trajectories; `begun = finished + given_up + dropped + those under way`.

    Args:
        begun: so far.
        finished: handed on to the trainer.
        given_up: by whoever began them.
        dropped: by the scheduler, which says so.
        turns: that are done.
        resumed: of them, those that went on elsewhere or later after they had begun.
        jobs: of each job that was heard of.
    """

    begun: int = 0
    finished: int = 0
    given_up: int = 0
    dropped: int = 0
    turns: int = 0
    resumed: int = 0
    jobs: dict[int, JobCounts] = field(default_factory=dict)

    def job(self, number: int) -> JobCounts:
        """Return those of one job, which begin when it is first asked for."""
        return self.jobs.setdefault(number, JobCounts())

    def copy(self) -> "FrontCounts":
        """Return some that stay as they are now."""
        return replace(self, jobs={number: replace(job) for number, job in self.jobs.items()})


@dataclass(slots=True)
class RolloutsState:
    """All but the core.

    Args:
        now_ns: of the last step.
        trajectories: that are not over.
        workers: that joined and were not lost, as they registered.
        used: numbers of trajectories that are over.
        counts: so far.
    """

    now_ns: int = 0
    trajectories: dict[int, Course] = field(default_factory=dict)
    workers: dict[int, Registered] = field(default_factory=dict)
    used: UsedNumbers = field(default_factory=UsedNumbers)
    counts: FrontCounts = field(default_factory=FrontCounts)

    def copy(self) -> "RolloutsState":
        """Return one that stays as it is now."""
        return RolloutsState(
            now_ns=self.now_ns,
            trajectories={number: one.copy() for number, one in self.trajectories.items()},
            workers=dict(self.workers),
            used=UsedNumbers(self.used.below, self.used.others),
            counts=self.counts.copy(),
        )


class Rollouts:
    """Takes entries, steps the core with them, and keeps what comes of it. One thread at a time.

    Args:
        core: decides.
        state: where it was, as the core was then.
        watch: sees the parts of turns.
    """

    def __init__(self, core: Core, state: RolloutsState, watch: Watch) -> None:
        self.state = state
        self.driver = CoreDriver(core, self, watch, now_ns=state.now_ns)
        self._core = core
        # Workers that are there when all that was taken in has come to the core.
        self._here: set[int] = set()
        self._pending: list[News] = []
        self._outcomes: list[Outcome] = []
        self._refusals: list[TurnOutput | WorkerLost] = []
        self._copy = SlowCopy({})
        for worker in state.workers.values():
            self.driver.expect(worker.worker, worker.kind)

    # ---- in and out -----------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Take in something for the next step.

        Raises:
            InvalidArgument: whoever said it contradicts what was said before; nothing has changed.
        """
        match entry:
            case Begun():
                self._begin(entry)
            case Asked():
                course = self.course(entry.trajectory)
                course.ask(entry)
                self._pending.append(
                    TurnReady(
                        trajectory=entry.trajectory,
                        turn=entry.turn,
                        context_tokens=len(course.context),
                        max_new_tokens=entry.sampling.max_new_tokens,
                    )
                )
            case Ended():
                self._end(entry)
            case Registered():
                self._register(entry)
            case VersionPublished():
                self._publish(entry)
            case JobJoined():
                _must_be_job(entry)
                self._pending.append(entry)
            case Consumed():
                self._consume(entry)
            case TurnOutput() | WorkerLost() | LeaseChanged() | VersionCommitted():
                self._hear(entry)

    def step(self, now_ns: int) -> list[Outcome]:
        """Step the core with all that was taken in, and return what came of it, in order.

        Raises:
            InvalidArgument: what was taken in contradicts itself.
            InternalError: a bug in the scheduler.
        """
        pending, self._pending = self._pending, []
        self.state.now_ns = now_ns
        self.driver.advance(pending, now_ns)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def stats(self) -> SchedulerStats:
        """Return the core's own books."""
        return self._core.stats()

    def counts(self) -> FrontCounts:
        """Return what became of trajectories so far."""
        return self.state.counts.copy()

    def is_idle(self) -> bool:
        """Whether every trajectory is in its environment: time alone changes only leases."""
        return all(one.phase is Phase.THINKING for one in self.state.trajectories.values())

    def has_refusals(self) -> bool:
        """Whether `take_refusals` has something to give."""
        return bool(self._refusals)

    def take_refusals(self) -> list[TurnOutput | WorkerLost]:
        """Return what workers would not do; it is to be taken in as if they had said so."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def begin_copy(self) -> SlowCopy:
        """Return a copy of all trajectories as they are now, which is not made yet.

        One that was begun before gets no further.
        """
        self._copy = SlowCopy(self.state.trajectories)
        return self._copy

    def course(self, trajectory: int) -> Course:
        """Return a trajectory that is not over, and that may change.

        Raises:
            InvalidArgument: there is none of that number.
        """
        course = self.state.trajectories.get(trajectory)
        if course is None:
            what = "is over" if trajectory in self.state.used else "was never started"
            raise InvalidArgument(f"trajectory {trajectory} {what}")
        self._copy.keep(course)
        return course

    def register(self, registered: Registered, worker: Worker) -> None:
        """Take in that `worker` is there, and carry orders to it from the next step on.

        What it runs and nobody wants any more is stopped at once.

        Raises:
            InvalidArgument: another has its number; nothing has changed.
        """
        if self.is_here(registered.worker):
            raise InvalidArgument(f"worker {registered.worker} is there already")
        is_back = self._is_back(registered)
        goes_on = self._going_on(registered) if is_back else set()
        self.take(registered)
        self._here.add(registered.worker)
        if is_back:
            self.driver.attach(worker)
        else:
            self.driver.join(worker)
        for turn in registered.running:
            if turn.trajectory not in goes_on:
                self.driver.stop(worker, turn.trajectory)

    def is_here(self, worker: int) -> bool:
        """Whether a worker has registered and is not lost, the next step's news included."""
        return worker in self._here

    def absent(self) -> list[int]:
        """Return the numbers of those that joined in an earlier life and are not back."""
        return [number for number in self.state.workers if number not in self._here]

    # ---- entries --------------------------------------------------------------------------------

    def _begin(self, begun: Begun) -> None:
        number = begun.trajectory
        for name in ("trajectory", "group", "job"):
            count(name, getattr(begun, name))
        if not -COUNT_MAX <= begun.seed <= COUNT_MAX:
            raise InvalidArgument(f"seed must fit {COUNT_MAX}, not be {begun.seed}")
        if not begun.traceparent.isascii():
            raise InvalidArgument(f"traceparent must be as the W3C has it, not {begun.traceparent}")
        if number in self.state.trajectories or number in self.state.used:
            raise InvalidArgument(f"trajectory {number} was there before: take another number")
        self.state.trajectories[number] = Course(
            number, begun.group, begun.job, begun.seed, begun.traceparent
        )
        self.state.counts.begun += 1
        self._pending.append(TrajectoryCreated(number, begun.group, begun.job))

    def _end(self, ended: Ended) -> None:
        course = self.course(ended.trajectory)
        is_thinking = course.phase is Phase.THINKING
        if ended.is_wanted and not is_thinking:
            raise InvalidArgument(
                f"trajectory {course.number} cannot be finished now: {course.phase.value}"
            )
        if course.phase is Phase.ENDING:
            return
        self._pending.append(TrajectoryEnded(trajectory=course.number))
        if not is_thinking:
            course.phase = Phase.ENDING  # The core will say Drop.
            return
        self._forget(course)
        if ended.is_wanted:
            self.state.counts.finished += 1
            self.state.counts.job(course.job).finished += 1
            return
        self.state.counts.given_up += 1
        self._pending.append(Consumed(1, course.job))  # The trainer need not wait for it.
        self._outcomes.append(Gone(course.number, DropReason.GIVEN_UP))

    def _publish(self, published: VersionPublished) -> None:
        count("version", published.version)
        count("job", published.job)
        job = self.state.counts.job(published.job)
        job.published = max(job.published, published.version)
        self._pending.append(published)

    def _consume(self, consumed: Consumed) -> None:
        count("job", consumed.job)
        counts = self.state.counts.job(consumed.job)
        left = counts.finished - counts.consumed
        if not 0 <= consumed.trajectories <= left:
            raise InvalidArgument(
                f"{consumed.trajectories} trajectories cannot be consumed: {left} are finished "
                "and not consumed"
            )
        counts.consumed += consumed.trajectories
        self._pending.append(consumed)

    def _register(self, registered: Registered) -> None:
        number = registered.worker
        count("worker", number)
        if self._is_back(registered):
            self._resume(registered)
        else:
            if number in self.state.workers:
                self._pending.append(WorkerLost(number, "it came back as another"))
            self._pending.append(registered.capabilities.joined(number, registered.kind))
        self.state.workers[number] = replace(registered, running=())

    def _is_back(self, registered: Registered) -> bool:
        """Whether the core knows this worker from an earlier life of the scheduler."""
        before = self.state.workers.get(registered.worker)
        if before is None:
            return False
        now = registered.capabilities
        was = replace(before.capabilities, version=now.version)
        return (before.kind, was) == (registered.kind, now)

    def _resume(self, registered: Registered) -> None:
        """Let turns go on that run on; what the worker has lost begins again at its last token."""
        version = registered.capabilities.version
        self._pending.append(VersionCommitted(registered.worker, version, True, 0.0))
        goes_on = self._going_on(registered)
        for course in self.state.trajectories.values():
            if course.is_on(registered.worker) and course.number not in goes_on:
                self._pending.append(
                    TurnEnded(
                        trajectory=course.number,
                        turn=len(course.turns),
                        worker=registered.worker,
                        lease_epoch=course.lease_epoch,
                        end=TurnEnd.INTERRUPTED,
                    )
                )

    def _going_on(self, registered: Registered) -> set[int]:
        """Return the trajectories whose turns run there as they should, without a gap."""
        return {
            turn.trajectory for turn in registered.running if self._goes_on(registered.worker, turn)
        }

    def _goes_on(self, worker: int, turn: RunningTurn) -> bool:
        """Return whether what a worker still runs is what it was asked for, without a gap."""
        course = self.state.trajectories.get(turn.trajectory)
        return (
            course is not None
            and course.is_on(worker)
            and (turn.turn, turn.lease_epoch) == (len(course.turns), course.lease_epoch)
            and turn.tokens <= len(course.tokens)
        )

    def _hear(self, event: TurnOutput | WorkerLost | LeaseChanged | VersionCommitted) -> None:
        if isinstance(event, WorkerLost):
            self.state.workers.pop(event.worker, None)
            self._here.discard(event.worker)
        if isinstance(event, TurnOutput) and event.end is TurnEnd.FAILED:
            course = self.state.trajectories.get(event.trajectory)
            if course is not None and course.is_on(event.worker):
                self._copy.keep(course)
                course.error = event.error
        self._pending.append(event)

    def _forget(self, course: Course) -> None:
        del self.state.trajectories[course.number]
        self.state.used.add(course.number)

    # ---- what the driver asks and says ----------------------------------------------------------

    def refused(self, news: TurnOutput | WorkerLost) -> None:
        """Keep it for the next step: what is not written down must change nothing."""
        self._refusals.append(news)

    def admitted(self, trajectory: int) -> None:
        """Let its environment have it."""
        course = self._known(trajectory)
        course.phase = Phase.THINKING
        self._outcomes.append(Admit(trajectory))

    def said(self, trajectory: int) -> list[int]:
        """Return the tokens of its present turn."""
        return self._known(trajectory).tokens

    def has_ended(self, trajectory: int) -> bool:
        """Whether its present turn has its last token."""
        return self._known(trajectory).has_ended()

    def request(self, start: Start) -> TurnRequest:
        """Return the turn as its worker is asked to run it."""
        return self._known(start.trajectory).request(start)

    def say(
        self,
        trajectory: int,
        tokens: tuple[int, ...],
        logprobs: tuple[float, ...],
        versions: tuple[int, ...],
    ) -> None:
        """Add tokens to its present turn."""
        self._known(trajectory).say(tokens, logprobs, versions)

    def turn_done(self, trajectory: int) -> Iterable[Event]:
        """Take a turn as whole."""
        course = self._known(trajectory)
        if course.phase is Phase.ENDING:
            # It was given up in the step in which its turn ended: to the core it is done.
            self._forget(course)
            self.state.counts.given_up += 1
            self._outcomes.append(Gone(trajectory, DropReason.GIVEN_UP))
            return (Consumed(1, course.job),)
        result = course.conclude()
        self.state.counts.turns += 1
        self.state.counts.resumed += result.resumed > 0
        self._outcomes.append(result)
        return ()

    def dropped(self, trajectory: int, reason: DropReason) -> None:
        """Forget it."""
        course = self._known(trajectory)
        self._forget(course)
        if course.phase is Phase.ENDING:
            self.state.counts.given_up += 1
        else:
            self.state.counts.dropped += 1
        self._outcomes.append(Gone(trajectory, reason, course.error))

    def _known(self, trajectory: int) -> Course:
        course = self.state.trajectories.get(trajectory)
        if course is None:
            raise InternalError(f"the core acts on trajectory {trajectory}, which is over")
        self._copy.keep(course)
        return course


def _must_be_job(job: JobJoined) -> None:
    count("job", job.job)
    count("batch_trajectories", job.batch_trajectories)
    if job.batch_trajectories == 0 or not 0 <= job.max_staleness <= _STALENESS_MAX:
        raise InvalidArgument(f"job {job.job} cannot have {job}: its batch is above 0")
    if job.max_staleness >= _TOTAL_MAX // job.batch_trajectories:
        raise InvalidArgument(
            f"job {job.job} cannot have {job}: max_staleness batches are fewer than 2^60"
        )
    if not _WEIGHT_MIN <= job.weight <= 1 / _WEIGHT_MIN:
        raise InvalidArgument(f"the weight of job {job.job} is within 1e-6 and 1e6")
