"""The scheduler as an RL framework uses it: coroutines ask for turns, and get all of each.

One task steps the core. Callers of the event loop note down what they want, workers' threads leave
their events in an inbox, and nothing that serves traffic ever waits. Whatever a step does is done
after it was written to the store: a scheduler that was killed, at whatever point, goes on where it
was.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from rose.clock import BootClock, Clock
from rose.errors import InvalidArgument, RoseError, Unavailable, sentence
from rose.scheduler.coerce import COUNT_MAX, checked, counts, one_of, whole
from rose.scheduler.course import SlowCopy
from rose.scheduler.durable import Durable
from rose.scheduler.events import Consumed, JobJoined, SchedulerStats, VersionPublished
from rose.scheduler.front_events import Begun, Ended, Entry, Registered
from rose.scheduler.inbox import Inbox
from rose.scheduler.rollouts import Rollouts
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.state import Checkpoint, FrontCounts
from rose.scheduler.turns import Capabilities, Sampling, TrajectoryRecord, TurnResult
from rose.scheduler.waiters import ADMISSION, STEP, Waiters
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
_count: Final = whole(0, COUNT_MAX)


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

    A call raises InvalidArgument for what has no meaning or contradicts what was said before, of
    which nothing is taken in, and Unavailable once the scheduler is closed.

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
        self._durable = Durable(settings, policy, clock or BootClock(), store, watches)
        self._waiters = Waiters()
        self._inbox: Inbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._is_closing = False
        self._error: RoseError | None = None
        self.checkpoint_error: str | None = None

    # ---- its life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Go on where the store says that it was, and start the task; raises as `Durable.open`."""
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
        cancelled = await _outlast(task)
        if self._saving is not None:
            cancelled = await _outlast(self._saving) or cancelled
        return cancelled

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        """Let nobody wait for a task that is no more."""
        failure = None if task.cancelled() else task.exception()
        if failure is None and self._is_closing:
            return
        if isinstance(failure, RoseError):
            self._error = failure
        else:
            said = "it was cancelled" if failure is None else sentence(failure)
            self._error = Unavailable(f"the scheduler has ended: {said}")
        self._waiters.fail_all(self._error)

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
        """
        entry = Registered(worker.number, worker.kind, capabilities)
        self._hear_workers().let_in(entry.worker)
        await self._tell(entry, worker)

    async def lose(self, worker: int, reason: str) -> None:
        """Take a worker as gone, as if it had said so itself."""
        await self._tell(checked(WorkerLost(worker, one_of("reason", reason, str))))

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
        """
        begun = Begun(trajectory, group, job, trajectory if seed is None else seed, traceparent)
        number = begun.trajectory
        trajectories = self._rollouts.state.trajectories
        while len(trajectories) >= TRAJECTORIES_MAX and number not in trajectories:
            await self._wait(STEP)
        course = trajectories.get(number)
        if course is None:
            self._take(begun)
        elif (course.group, course.job, course.seed) != (begun.group, begun.job, begun.seed):
            raise InvalidArgument(f"trajectory {number} was started as another")
        elif course.record().is_admitted:
            return
        await self._wait(number, ADMISSION)

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
        """
        number, place = _count("trajectory", trajectory), _count("turn", turn)
        ids = counts("prompt", prompt)
        wanted = one_of("sampling", sampling, Sampling)

        self._open_inbox()
        course = self._rollouts.course(number)
        asked = course.asked(place, ids, wanted)
        if asked is not None:
            self._take(asked)
        elif place < len(course.turns):
            return course.turns[place]
        result: TurnResult = await self._wait(number, place)
        return result

    async def finish(self, trajectory: int) -> None:
        """Hand a trajectory on to the trainer, which says `consumed`; its environment is over.

        Raises:
            InvalidArgument: a turn of it is on its way, or it was never started.
        """
        await self._end(Ended(trajectory, is_wanted=True))

    async def abort(self, trajectory: int) -> None:
        """Give a trajectory up, wherever it is; whoever waits for it is told so."""
        await self._end(Ended(trajectory, is_wanted=False))

    async def _end(self, ended: Ended) -> None:
        self._open_inbox()
        if ended.trajectory not in self._rollouts.state.used:  # Else it was said before.
            await self._tell(ended)

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
        """
        joined = JobJoined(job, batch_trajectories, max_staleness, weight)
        await self._tell(checked(joined))

    async def publish(self, version: int, *, job: int = 0) -> None:
        """Say that a job's trainer has published a version; one that is not newer says nothing."""
        await self._tell(checked(VersionPublished(version, job)))

    async def consumed(self, trajectories: int, *, job: int = 0) -> None:
        """Say that a job's trainer has used, or thrown away, so many more that were finished.

        Said twice it counts twice: `counts().jobs[job].consumed` tells whether it was heard.

        Raises:
            InvalidArgument: not so many were finished.
        """
        await self._tell(checked(Consumed(trajectories, job)))

    async def checkpoint(self) -> None:
        """Write a checkpoint now, and return when it is on the disk.

        Raises:
            InvalidArgument: the scheduler has no store.
            Unavailable: the disk does not take it; the one before or this one, and all steps since,
                are there.
        """
        inbox = self._open_inbox()
        self._durable.want_checkpoint()
        while self._durable.is_checkpoint_due():  # It is begun between two steps.
            inbox.wake()
            await self._wait(STEP)
        if self._saving is None:
            raise Unavailable(self.checkpoint_error or "no checkpoint was begun")
        await asyncio.shield(self._saving)

    # ---- what is --------------------------------------------------------------------------------

    def trajectories(self) -> tuple[TrajectoryRecord, ...]:
        """Return all that are not over, also those begun in an earlier life."""
        return tuple(one.record() for one in self._rollouts.state.trajectories.values())

    def counts(self) -> FrontCounts:
        """Return what became of trajectories."""
        return self._rollouts.state.counts.copy()

    def stats(self) -> SchedulerStats:
        """Return the core's own books."""
        return self._rollouts.stats()

    @property
    def _rollouts(self) -> Rollouts:
        return self._durable.rollouts

    # ---- what callers say -----------------------------------------------------------------------

    def _open_inbox(self) -> Inbox:
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        if self._inbox is None or self._is_closing:
            raise Unavailable("the scheduler is not open")
        return self._inbox

    def _hear_workers(self) -> Inbox:
        """Take in what workers have said before a caller says something."""
        inbox = self._open_inbox()
        events, heard = inbox.take(), 0
        inbox.wake()
        try:
            for event in events:
                self._durable.hear(event)
                heard += 1
        finally:
            if heard < len(events) and self._task is not None:
                self._task.cancel()  # A bug: what the others said is lost, so nothing goes on.
        return inbox

    def _take(self, entry: Entry, worker: Worker | None = None) -> None:
        self._hear_workers()
        self._durable.take(entry, worker)

    async def _tell(self, entry: Entry, worker: Worker | None = None) -> None:
        """Take in an entry, and return when it was written down and the core has stepped."""
        self._take(entry, worker)
        await self._wait(STEP)

    async def _wait(self, trajectory: int, turn: int = 0) -> Any:
        self._open_inbox()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.add(trajectory, turn, answer)
        try:
            return await answer
        finally:
            self._waiters.leave(trajectory, turn, answer)

    # ---- the task -------------------------------------------------------------------------------

    async def _run(self, inbox: Inbox) -> None:
        is_last = False
        while not is_last:
            await inbox.wait(TICK_S)
            is_last = self._is_closing
            self._advance(inbox.take())
            await asyncio.sleep(0)  # Workers that never pause must not starve callers.

    def _advance(self, events: Sequence[WorkerEvent]) -> None:
        """Take in what workers said, step the core, and tell whoever waited for what came of it."""
        for event in events:
            self._durable.hear(event)
        if self._durable.needs_step():
            for outcome in self._durable.step():
                self._waiters.tell(outcome)
        if self._durable.is_checkpoint_due() and self._saving is None:
            try:
                self._begin_saving()
            except Unavailable as error:
                self.checkpoint_error = str(error)  # All steps are in the journal before.
        self._waiters.tell_stepped()

    def _begin_saving(self) -> None:
        head, copy = self._durable.begin_checkpoint()
        saving = asyncio.get_running_loop().create_task(
            self._save(head, copy), name="rose-checkpoint"
        )
        self._saving = saving
        saving.add_done_callback(self._has_saved)

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
