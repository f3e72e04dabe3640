"""The scheduler as an RL framework uses it: coroutines ask for turns, and get all of each.

One task owns the core. Workers' threads and callers' coroutines only say what they have to say to
its inbox, so nothing that serves traffic ever waits for it. Whatever a step does is done after it
was written to the store: a scheduler that was killed, at whatever point, goes on where it was.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from rose.clock import BootClock, Clock
from rose.errors import InvalidArgument, RoseError, Unavailable, sentence
from rose.scheduler.coerce import count, one_of, real, whole, wholes
from rose.scheduler.copying import SlowCopy
from rose.scheduler.durable import Durable
from rose.scheduler.events import Consumed, JobJoined, SchedulerStats, VersionPublished
from rose.scheduler.front_events import Begun, Ended, Entry, Registered
from rose.scheduler.inbox import Inbox
from rose.scheduler.rollouts import Rollouts
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.state import Checkpoint, FrontCounts
from rose.scheduler.turns import Capabilities, Sampling, TrajectoryRecord, TurnResult
from rose.scheduler.waiters import ADMISSION, Waiters
from rose.scheduler.watching import FrontWatch
from rose.scheduler.worker import Worker, WorkerEvent, WorkerLost

if TYPE_CHECKING:
    from rose.scheduler.store_file import FileStore

_SETTINGS: Final = SchedulerSettings()
# Events of workers that may wait for the scheduler's task; with one more, the worker that sends it
# is taken as lost. Some seconds of a thousand workers.
EVENTS_MAX: Final = 65_536
# Trajectories that are begun and not over; `start` of one more waits for one to end.
TRAJECTORIES_MAX: Final = 100_000
# How often the core steps when nothing happens, in seconds: leases run out and stalls are seen that
# late. While every turn is with its environment, half a second.
TICK_S: Final = 0.05
# As in csrc/scheduler/batch_check.cpp: what the core would refuse is refused before it is noted.
_STALENESS_MAX: Final = 1 << 20
_TOTAL_MAX: Final = 1 << 60
_WEIGHT_MIN: Final = 1e-6


class _Later(Exception):
    """A command cannot be taken in yet; nothing has changed."""


@dataclass(slots=True, eq=False)
class _Command:
    """What a caller wants.

    Args:
        run: says what is to be noted down, None for nothing; in the scheduler's task.
        answer: is told once what was noted down is done, unless somebody else tells it.
        is_answered_by_step: whether the next step's end is the answer.
    """

    run: Callable[[], Entry | None]
    answer: asyncio.Future[Any]
    is_answered_by_step: bool = True
    worker: Worker | None = None


class ElasticRolloutScheduler:
    """Decides which worker runs which turn of which trajectory, and brings every turn home whole.

        async with ElasticRolloutScheduler(store=FileStore(path)) as scheduler:
            await scheduler.register(worker, Capabilities(seats=8, ...))
            await scheduler.start(7, group=1)
            said = await scheduler.generate(7, turn=0, prompt=ids, sampling=Sampling(512))
            await scheduler.finish(7)

    Everything but `consumed` may be said again, after a restart or because the first answer was not
    awaited: a turn that is done is returned, one that is on its way is waited for, and neither runs
    twice. A caller that is cancelled leaves alone; its turn goes on until somebody asks for it, or
    `abort`.

    Threads: `hear` may be called by any thread; all else by that of the event loop.

    Args:
        settings: knobs of the core.
        policy: who decides where a turn runs.
        clock: where time comes from.
        store: what is written down; None forgets everything with the process.
        watches: see everything.
    """

    def __init__(
        self,
        settings: SchedulerSettings = _SETTINGS,
        policy: PlacementPolicy = PlacementPolicy.JOINT,
        *,
        clock: Clock | None = None,
        store: "FileStore | None" = None,
        watches: Sequence[FrontWatch] = (),
    ) -> None:
        self._durable = Durable(
            settings,
            policy,
            clock=BootClock() if clock is None else clock,
            store=store,
            watches=watches,
        )
        self._waiters = Waiters()
        self._held: list[_Command] = []  # starts that wait for others to be over
        self._taken: list[_Command | WorkerEvent] = []  # what the step that is on its way is of
        self._inbox: Inbox[_Command] | None = None
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._is_closing = False
        self._error: RoseError | None = None
        self.checkpoint_error: str | None = None

    # ---- its life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Go on where the store says that it was, and start the task.

        Raises:
            CorruptData: the store does not hold what was written.
            InvalidArgument: it holds the state of a scheduler with other settings.
            Unavailable: it cannot be read or written.
        """
        loop = asyncio.get_running_loop()
        try:
            self._durable.open()
        except RoseError:
            self._durable.close()
            raise
        self._inbox = Inbox(loop, events_max=EVENTS_MAX)
        self._task = loop.create_task(self._run(self._inbox), name="rose-scheduler")
        self._task.add_done_callback(self._has_ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take every turn back, write a last checkpoint, and tell whoever still waits.

        Raises:
            RoseError: what ended the scheduler before, or kept its last checkpoint from the disk;
                not when something else is raised already.
        """
        self._is_closing = True
        cancelled = None
        try:
            cancelled = await self._end_tasks()
            self._rollouts.stop_turns()
            if self._error is None:
                self._durable.save_now()
        except RoseError as failure:
            self._error = self._error or failure
        finally:
            self._waiters.fail_all(self._error or Unavailable("the scheduler was closed"))
            self._durable.close()
        if cancelled is not None:
            raise cancelled
        if self._error is not None and error is None:
            raise self._error

    async def _end_tasks(self) -> asyncio.CancelledError | None:
        """Wait until nothing writes to the store any more, and return who would not wait."""
        inbox, task = self._inbox, self._task
        if inbox is None or task is None:
            return None
        inbox.close()
        inbox.wake()
        cancelled = await _outlast(task)
        if self._saving is not None:
            cancelled = await _outlast(self._saving) or cancelled
        return cancelled

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        """Let nobody wait for a task that is no more."""
        failure = None if task.cancelled() else task.exception()
        if failure is None and self._is_closing:
            self._refuse_commands(Unavailable("the scheduler was closed"))
            return
        if isinstance(failure, RoseError):
            self._error = failure
        else:
            said = "it was cancelled" if failure is None else sentence(failure)
            self._error = Unavailable(f"the scheduler has ended: {said}")
        self._waiters.fail_all(self._error)
        self._refuse_commands(self._error)

    def _refuse_commands(self, error: RoseError) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        inbox.close()
        for one in (*self._taken, *inbox.take(), *self._held):
            if isinstance(one, _Command) and not one.answer.done():
                one.answer.set_exception(type(error)(*error.args))
        self._taken, self._held = [], []

    # ---- workers --------------------------------------------------------------------------------

    def hear(self, event: WorkerEvent) -> None:
        """Take what a worker says; never waits. From any thread, also before it is registered."""
        inbox = self._inbox
        if inbox is not None:
            inbox.hear(event)

    async def register(self, worker: Worker, capabilities: Capabilities) -> None:
        """Let a worker take part; it gets turns once it reports a lease.

        One that was here in an earlier life of the scheduler may come back under its number, when
        it has stopped its turns: they begin again at their last tokens. Its leases must go on where
        they were: an old epoch that was revoked stays dead.

        Args:
            worker: whose events go to `hear`.
            capabilities: of it.

        Raises:
            InvalidArgument: another has its number.
        """
        entry = Registered(worker.number, worker.kind, capabilities)
        inbox = self._open_inbox()

        def run() -> Entry:
            inbox.let_in(entry.worker)
            return entry

        await self._tell(run, worker=worker)

    async def lose(self, worker: int, reason: str) -> None:
        """Take a worker as gone, as if it had said so itself."""
        lost = WorkerLost(count("worker", worker), one_of("reason", reason, str))
        await self._tell(lambda: lost)

    # ---- trajectories ---------------------------------------------------------------------------

    async def start(
        self,
        trajectory: int,
        *,
        group: int = 0,
        job: int = 0,
        seed: int | None = None,
        traceparent: str = "",
    ) -> None:
        """Begin a trajectory, and return when staleness admission lets it start.

        Args:
            trajectory: a number that no other has or had, best counted up from 0.
            group: those that share a task.
            job: whose it is.
            seed: of what it says; its number if None.
            traceparent: of the W3C: the caller's span, that its spans become part of.

        Raises:
            InvalidArgument: the number was used before, or stands for another trajectory.
            TrajectoryDropped: it was given up.
            Unavailable: the scheduler was closed.
        """
        begun = Begun(trajectory, group, job, trajectory if seed is None else seed, traceparent)

        number = begun.trajectory

        def run(answer: asyncio.Future[None]) -> Entry | None:
            course = self._rollouts.state.trajectories.get(number)
            if course is None:
                if len(self._rollouts.state.trajectories) >= TRAJECTORIES_MAX:
                    raise _Later
                self._waiters.add(number, ADMISSION, answer)
                return begun
            if (course.group, course.job, course.seed) != (begun.group, begun.job, begun.seed):
                raise InvalidArgument(f"trajectory {number} was started as another")
            if course.record().is_admitted:
                answer.set_result(None)
            else:
                self._waiters.add(number, ADMISSION, answer)
            return None

        await self._wait(number, ADMISSION, run)

    async def generate(
        self, trajectory: int, *, turn: int, prompt: Sequence[int], sampling: Sampling
    ) -> TurnResult:
        """Return all of a turn, wherever and in how many parts it runs.

        Args:
            trajectory: that was admitted.
            turn: counts from 0; the next one, the one on its way, or one that is done.
            prompt: token ids of the whole context, earlier turns included.
            sampling: how it is generated.

        Raises:
            InvalidArgument: it is not its turn, or it was asked for in other words.
            TrajectoryDropped: the trajectory was dropped or given up.
            Unavailable: the scheduler was closed.
        """
        number, place = whole("trajectory", trajectory), whole("turn", turn)
        ids = wholes("prompt", prompt)
        wanted = one_of("sampling", sampling, Sampling)

        def run(answer: asyncio.Future[TurnResult]) -> Entry | None:
            course = self._rollouts.course(number)
            asked = course.asked(place, ids, wanted)
            if asked is None and place < len(course.turns):
                if place < 0:
                    raise InvalidArgument(f"trajectory {number} has no turn {place}")
                answer.set_result(course.turns[place])
                return None
            self._waiters.add(number, place, answer)
            return asked

        result: TurnResult = await self._wait(number, place, run)
        return result

    async def finish(self, trajectory: int) -> None:
        """Hand a trajectory on to the trainer, which says `consumed`; its environment is over.

        Raises:
            InvalidArgument: a turn of it is on its way, or it was never started.
        """
        await self._end(Ended(trajectory, is_wanted=True))

    async def abort(self, trajectory: int) -> None:
        """Give a trajectory up, wherever it is; whoever waits for it is told so.

        Raises:
            InvalidArgument: it was never started.
        """
        await self._end(Ended(trajectory, is_wanted=False))

    async def _end(self, ended: Ended) -> None:
        def run() -> Entry | None:
            return None if ended.trajectory in self._rollouts.state.used else ended  # Said before.

        await self._tell(run)

    # ---- the trainer ----------------------------------------------------------------------------

    async def add_job(
        self, job: int, *, batch_trajectories: int, max_staleness: int, weight: float = 1.0
    ) -> None:
        """Bring a job, or change its values; one without has those of the settings.

        Args:
            job: its number, >= 0.
            batch_trajectories: what its trainer takes for one version, > 0.
            max_staleness: versions between the start of a trajectory and its use, >= 0.
            weight: of its fair share of devices that several jobs share, > 0.

        Raises:
            InvalidArgument: a value is out of range.
        """
        joined = JobJoined(
            job=count("job", job),
            batch_trajectories=count("batch_trajectories", batch_trajectories),
            max_staleness=count("max_staleness", max_staleness),
            weight=real("weight", weight),
        )
        if joined.batch_trajectories == 0 or joined.max_staleness > _STALENESS_MAX:
            raise InvalidArgument(f"job {job} cannot have {joined}: its batch is above 0")
        if joined.max_staleness >= _TOTAL_MAX // joined.batch_trajectories:
            raise InvalidArgument(
                f"job {job} cannot have {joined}: max_staleness batches are fewer than 2^60"
            )
        if not _WEIGHT_MIN <= joined.weight <= 1 / _WEIGHT_MIN:
            raise InvalidArgument(f"the weight of job {job} is within 1e-6 and 1e6")
        await self._tell(lambda: joined)

    async def publish(self, version: int, *, job: int = 0) -> None:
        """Say that a job's trainer has published a version; one that is not newer says nothing.

        Raises:
            InvalidArgument: it is no count.
        """
        published = VersionPublished(count("version", version), count("job", job))
        await self._tell(lambda: published)

    async def consumed(self, trajectories: int, *, job: int = 0) -> None:
        """Say that a job's trainer has used, or thrown away, so many more that were finished.

        Said twice it counts twice: `counts().jobs[job].consumed` tells whether it was heard.

        Raises:
            InvalidArgument: not so many were finished.
        """
        consumed = Consumed(count("trajectories", trajectories), count("job", job))
        await self._tell(lambda: consumed)

    async def checkpoint(self) -> None:
        """Write a checkpoint now, and return when it is on the disk.

        Raises:
            InvalidArgument: the scheduler has no store.
            Unavailable: the disk does not take it; the one before or this one, and all steps since,
                are there.
        """
        self._open_inbox()
        while self._saving is not None:
            await asyncio.wait({self._saving})
            await asyncio.sleep(0)  # Its callbacks run.
        await asyncio.shield(self._begin_saving())

    # ---- what is --------------------------------------------------------------------------------

    def trajectories(self) -> tuple[TrajectoryRecord, ...]:
        """Return all that are not over, also those begun in an earlier life."""
        return tuple(one.record() for one in self._rollouts.state.trajectories.values())

    def counts(self) -> FrontCounts:
        """Return what became of trajectories."""
        return self._rollouts.counts()

    def stats(self) -> SchedulerStats:
        """Return the core's own books."""
        return self._rollouts.stats()

    @property
    def _rollouts(self) -> Rollouts:
        return self._durable.rollouts

    # ---- saying something to the task -----------------------------------------------------------

    def _open_inbox(self) -> Inbox[_Command]:
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        if self._inbox is None or self._is_closing:
            raise Unavailable("the scheduler is not open")
        return self._inbox

    async def _tell(self, run: Callable[[], Entry | None], *, worker: Worker | None = None) -> None:
        inbox = self._open_inbox()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        inbox.tell(_Command(run, answer, worker=worker))
        await answer

    async def _wait(
        self, trajectory: int, turn: int, run: Callable[[asyncio.Future[Any]], Entry | None]
    ) -> Any:
        inbox = self._open_inbox()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        inbox.tell(_Command(lambda: run(answer), answer, is_answered_by_step=False))
        try:
            return await answer
        finally:
            self._waiters.leave(trajectory, turn, answer)

    # ---- the task -------------------------------------------------------------------------------

    async def _run(self, inbox: Inbox[_Command]) -> None:
        while not self._is_closing:
            await inbox.wait(TICK_S)
            self._advance(inbox.take())
            await asyncio.sleep(0)  # Workers that never pause must not starve callers.

    def _advance(self, items: Sequence[_Command | WorkerEvent]) -> None:
        """Take in what was said, step the core, and tell whoever waited for what came of it."""
        stepped: list[_Command] = []
        self._taken, self._held = [*self._held, *items], []
        for item in self._taken:
            if not isinstance(item, _Command):
                self._durable.hear(item)
            elif not item.answer.done():  # Else its caller has left before it was heard.
                self._obey(item, stepped)
        if self._durable.needs_step():
            for outcome in self._durable.step():
                self._waiters.tell(outcome)
        for command in stepped:
            if not command.answer.done():
                command.answer.set_result(None)
        self._taken = []
        if self._durable.is_checkpoint_due() and self._saving is None:
            try:
                self._begin_saving()
            except Unavailable as error:
                self.checkpoint_error = str(error)  # All steps are in the journal before.

    def _obey(self, command: _Command, stepped: list[_Command]) -> None:
        try:
            entry = command.run()
            if entry is not None:
                self._durable.take(entry, command.worker)
        except _Later:
            self._held.append(command)
            return
        except InvalidArgument as error:
            command.answer.set_exception(error)
            return
        if command.is_answered_by_step:
            stepped.append(command)

    def _begin_saving(self) -> asyncio.Task[None]:
        head, copy = self._durable.begin_checkpoint()
        saving = asyncio.get_running_loop().create_task(
            self._save(head, copy), name="rose-checkpoint"
        )
        self._saving = saving
        saving.add_done_callback(self._has_saved)
        return saving

    async def _save(self, head: Checkpoint, copy: SlowCopy) -> None:
        while not copy.advance():
            await asyncio.sleep(0)  # Steps and callers go on between two slices.
        await asyncio.to_thread(self._durable.save, head, copy)

    def _has_saved(self, saving: asyncio.Task[None]) -> None:
        self._saving = None
        failure = None if saving.cancelled() else saving.exception()
        self.checkpoint_error = None if failure is None else sentence(failure)


async def _outlast(task: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Wait for a task, also when that is cancelled; return the cancellation, to be raised later."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError as error:
        await _outlast(task)
        return error
    return None
