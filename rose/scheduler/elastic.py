"""The scheduler for RL frameworks: coroutines request turns and get complete results.

One task steps the core. Callers on the event loop queue entries, worker threads put events into an
inbox, and no thread that serves traffic ever waits. The effects of a step follow its journal entry,
so a scheduler that is killed at any point continues where it stopped.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from rose.clock import BootClock, Clock
from rose.errors import InvalidArgument, RoseError, Unavailable, sentence
from rose.scheduler.checks import Count, checked, checked_as, one_of, tokens_of
from rose.scheduler.driver_events import (
    Begun,
    Cut,
    Drained,
    Ended,
    Entry,
    JobAdded,
    PauseChanged,
    RatesMeasured,
    Registered,
    TrainerPublished,
    Used,
)
from rose.scheduler.driver_trajectory import SlowCopy
from rose.scheduler.durable import Durable
from rose.scheduler.inbox import Inbox
from rose.scheduler.rollouts import Rollouts
from rose.scheduler.settings import PlacementPolicy, SchedulerSettings
from rose.scheduler.state import DriverCounts, SchedulerCheckpoint
from rose.scheduler.stats import SchedulerStats
from rose.scheduler.turns import Capabilities, Sampling, TrajectoryRecord, TurnResult
from rose.scheduler.versions import ANY, VersionRange
from rose.scheduler.waiters import ADMISSION, STEP, Waiters
from rose.scheduler.watching import DriverWatch
from rose.scheduler.worker import Worker, WorkerEvent, WorkerLost

if TYPE_CHECKING:
    from rose.scheduler.store_file import FileStore

_SETTINGS: Final = SchedulerSettings()
# Largest number of worker events that may wait for the scheduler's task: as many as a thousand
# workers send in some seconds. A worker that sends one more counts as lost.
EVENTS_MAX: Final = 65_536
# Largest number of unfinished trajectories. Further calls of `start` wait until one has ended.
TRAJECTORIES_MAX: Final = 100_000
# Seconds between steps without events, and so the delay with which expired grants and stalls are
# noticed. While every trajectory is in its environment, the delay is half a second.
TICK_S: Final = 0.05


class ElasticRolloutScheduler:
    """Decides which worker runs which turn of which trajectory, and returns complete turns.

        async with ElasticRolloutScheduler(store=FileStore(path)) as scheduler:
            await scheduler.register(worker, Capabilities(seats=8, ...))
            await scheduler.start(7, group=1)
            result = await scheduler.generate(7, turn=0, prompt=ids, sampling=Sampling(512))
            await scheduler.finish(7)

    Every call except `consumed` may be repeated after a restart or a lost answer. A repeated
    `generate` returns a finished turn, waits for a running turn, and starts neither again.
    Cancelling a caller does not cancel its turn; the result is kept until someone asks for it, or
    until `abort`.

    A call raises InvalidArgument for invalid or contradictory input, which has no effect, and
    Unavailable once the scheduler is closed.

    Threads: any thread may call `receive`; everything else belongs to the event loop's thread.

    Args:
        settings: settings of the core.
        policy: placement policy.
        clock: source of times.
        store: journal and checkpoints; None loses all state with the process.
        watches: observers of all events.
    """

    def __init__(
        self,
        settings: SchedulerSettings = _SETTINGS,
        policy: PlacementPolicy = PlacementPolicy.JOINT,
        *,
        clock: Clock | None = None,
        store: "FileStore | None" = None,
        watches: Sequence[DriverWatch] = (),
    ) -> None:
        self._durable = Durable(settings, policy, clock or BootClock(), store, watches)
        self._waiters = Waiters()
        self._inbox: Inbox | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = None  # ends the task
        self._saving: asyncio.Task[None] | None = None
        self._is_closing = False
        self._error: RoseError | None = None
        self.checkpoint_error: str | None = None

    # ---- lifecycle ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Continue from the store, and start the task; raises what `Durable.open` raises."""
        loop = asyncio.get_running_loop()
        try:
            self._durable.open()
        except RoseError:
            self._durable.close()
            raise
        self._over = loop.create_future()
        self._inbox = Inbox(self._on_events, tick_s=TICK_S, events_max=EVENTS_MAX)
        self._task = loop.create_task(self._run(self._inbox, self._over), name="rose-scheduler")
        self._task.add_done_callback(self._has_ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Recall every turn, write a last checkpoint, and wake all waiting callers.

        Raises:
            RoseError: an error ended the scheduler or prevented its last checkpoint. It is not
                raised while another exception is being raised.
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
        """Wait until nothing writes to the store; return a cancellation received meanwhile."""
        inbox, task, over = self._inbox, self._task, self._over
        if inbox is None or task is None or over is None:
            return None
        inbox.close()
        if not over.done():
            over.set_result(None)
        cancelled = await _outlast(task)
        if self._saving is not None:
            cancelled = await _outlast(self._saving) or cancelled
        return cancelled

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        """Wake all callers when the task ends early."""
        if self._inbox is not None:
            self._inbox.close()
        failure = None if task.cancelled() else task.exception()
        if failure is None and self._is_closing:
            return
        if isinstance(failure, RoseError):
            self._error = failure
        else:
            why = "it was cancelled" if failure is None else sentence(failure)
            self._error = Unavailable(f"the scheduler has ended: {why}")
        self._waiters.fail_all(self._error)

    # ---- workers --------------------------------------------------------------------------------

    def receive(self, event: WorkerEvent) -> None:
        """Accept a worker's event, even before its registration.

        Never waits; any thread may call it.
        """
        inbox = self._inbox
        if inbox is not None:
            inbox.receive(event)

    async def register(self, worker: Worker, capabilities: Capabilities) -> None:
        """Add a worker; it gets turns once it reports a capacity grant.

        A worker of an earlier scheduler process may register again under its number after it has
        stopped its turns, which then resume at their last tokens. Its grant epochs must continue
        from the old ones, because a revoked epoch never becomes valid again.

        Args:
            worker: worker whose events go to `receive`.
            capabilities: capabilities of the worker.

        Raises:
            InvalidArgument: the number is taken.
            Unavailable: the worker has reported its own loss since the last call.
        """
        entry = checked(Registered(worker.number, worker.kind, capabilities))
        self._receive_events().let_in(entry.worker)
        await self._send(entry, worker)

    async def lose(self, worker: int, reason: str, *, is_crash: bool = True) -> None:
        """Treat a worker as gone, as if it had reported its own loss with these fields."""
        await self._send(checked(WorkerLost(worker, one_of("reason", reason, str), is_crash)))

    async def measured(
        self,
        worker: int,
        *,
        prefill_tokens_per_s: float,
        decode_step_ms: float,
        decode_ms_per_sequence: float,
    ) -> None:
        """Change the rates of a worker; its turns continue. A worker that is lost is ignored."""
        rates = prefill_tokens_per_s, decode_step_ms, decode_ms_per_sequence
        await self._send(checked(RatesMeasured(worker, *rates)))

    async def drain(self, worker: int) -> None:
        """Give a worker no more turns, and return when the last one has left it.

        Its turns continue elsewhere at their next token. The worker stays registered, without
        turns, until `lose`.
        """
        drained = checked(Drained(worker))
        await self._send(drained)
        while self._rollouts.turns_on(drained.worker):
            await self._wait(STEP)

    # ---- pauses ---------------------------------------------------------------------------------

    async def pause(self, is_recalling: bool) -> None:  # noqa: FBT001 (its only parameter)
        """Start no turn until `resume`, even after a restart.

        Args:
            is_recalling: whether running turns are recalled, and continue after `resume` at their
                next token. Otherwise they run to their end.
        """
        await self._send(PauseChanged(True, bool(is_recalling)))

    async def resume(self) -> None:
        """Start turns again."""
        await self._send(PauseChanged(False))

    async def quiet(self) -> None:
        """Return when no turn is on a worker."""
        await self._wait(STEP)  # Events that are accepted already may start or end turns.
        while self._rollouts.turns_on(None):
            await self._wait(STEP)

    # ---- trajectories ---------------------------------------------------------------------------

    async def start(
        self,
        trajectory: int,
        *,
        group: int = 0,
        job: int = 0,
        seed: int | None = None,
    ) -> None:
        """Begin a trajectory, and return when staleness admission lets it start.

        Args:
            trajectory: number that was never used, best counted up from 0.
            group: number shared by the trajectories of one task.
            job: number of its job.
            seed: seed of its sampling; None for the trajectory's number.

        Raises:
            InvalidArgument: the number was used for another trajectory.
            TrajectoryDropped: the trajectory was given up.
        """
        begun = checked(Begun(trajectory, group, job, trajectory if seed is None else seed))
        number = begun.trajectory
        trajectories = self._rollouts.state.trajectories
        while len(trajectories) >= TRAJECTORIES_MAX and number not in trajectories:
            await self._wait(STEP)
        state = trajectories.get(number)
        if state is None:
            self._take(begun)
        elif (state.group, state.job, state.seed) != (begun.group, begun.job, begun.seed):
            raise InvalidArgument(f"trajectory {number} was started with other arguments")
        elif state.record().is_admitted:
            return
        await self._wait(number, ADMISSION)

    async def generate(
        self,
        trajectory: int,
        *,
        turn: int,
        prompt: Sequence[int],
        sampling: Sampling,
        versions: VersionRange = ANY,
    ) -> TurnResult:
        """Run a turn, on any workers and in any number of parts, and return the complete result.

        Args:
            trajectory: number of an admitted trajectory.
            turn: index from 0 of the next turn, the running turn, or a finished turn.
            prompt: token ids of the whole context, including earlier turns.
            sampling: sampling of the turn.
            versions: versions of weights that may generate the turn's tokens. The turn waits until
                a worker has one of them.

        Raises:
            InvalidArgument: `turn` is not the next turn, or was requested differently before.
            TurnRefused: a worker refused the turn as invalid; the trajectory was dropped.
            VersionConflict: every worker has newer weights than `versions` accepts; the trajectory
                was dropped.
            TurnLost: its workers were lost one after another; the trajectory was dropped.
            TrajectoryDropped: the trajectory was dropped or given up.
        """
        number, place = _number("trajectory", trajectory), _number("turn", turn)
        ids = tokens_of("prompt", prompt)
        one_of("versions", versions, VersionRange)
        wanted: Sampling = one_of("sampling", sampling, Sampling)

        self._open_inbox()
        state = self._rollouts.trajectory(number)
        asked = state.asked(place, ids, wanted, versions)
        if asked is not None:
            self._take(asked)
        elif place < len(state.turns):
            return state.turns[place]
        result: TurnResult = await self._wait(number, place)
        return result

    async def cut(self, trajectory: int, *, turn: int, tokens: int) -> None:
        """Finish the current turn with its first `tokens` tokens, and stop its worker.

        `generate` returns the turn with these tokens. A turn that has ended stays as it is.

        Raises:
            InvalidArgument: the turn is neither the current one nor finished, or has fewer tokens.
        """
        cut = checked(Cut(trajectory, turn, tokens))
        self._receive_events()
        state = self._rollouts.trajectory(cut.trajectory)
        if cut.turn < len(state.turns):
            return
        self._durable.take(cut)
        await self._wait(cut.trajectory, cut.turn)

    async def finish(self, trajectory: int) -> None:
        """End a trajectory and count it as finished, for the trainer's `consumed`.

        Raises:
            InvalidArgument: a turn is running, or the trajectory was never started.
        """
        await self._end(checked(Ended(trajectory, is_wanted=True)))

    async def abort(self, trajectory: int) -> None:
        """Give up a trajectory, in any phase; waiting callers get TrajectoryDropped."""
        await self._end(checked(Ended(trajectory, is_wanted=False)))

    async def _end(self, ended: Ended) -> None:
        self._open_inbox()
        if ended.trajectory not in self._rollouts.state.used:  # Otherwise this is a repetition.
            await self._send(ended)

    # ---- the trainer ----------------------------------------------------------------------------

    async def add_job(
        self, job: int, *, batch_trajectories: int, max_staleness: int, weight: float = 1.0
    ) -> None:
        """Add a job, or change its values; jobs that were not added have the settings' values.

        Args:
            job: number of the job, >= 0.
            batch_trajectories: trajectories that its trainer uses per version, > 0.
            max_staleness: most versions between the start of a trajectory and its use, >= 0.
            weight: relative share of devices that several jobs share, > 0.
        """
        added = JobAdded(job, batch_trajectories, max_staleness, weight)
        await self._send(checked(added))

    async def publish(self, version: int, *, job: int = 0) -> None:
        """Report a version that a job's trainer published; an older version is ignored."""
        await self._send(checked(TrainerPublished(version, job)))

    async def consumed(self, trajectories: int, *, job: int = 0) -> None:
        """Report that a job's trainer has used or discarded finished trajectories.

        A repeated call counts twice: check `counts().jobs[job].consumed` after a lost answer.

        Args:
            trajectories: number of trajectories since the last call.
            job: number of the job.

        Raises:
            InvalidArgument: fewer trajectories are finished and not yet consumed.
        """
        await self._send(checked(Used(trajectories, job)))

    async def checkpoint(self) -> None:
        """Write a checkpoint now, and return when it is on disk.

        Raises:
            InvalidArgument: the scheduler has no store.
            Unavailable: the disk fails. The old or the new checkpoint is on disk, with all steps
                since then.
        """
        inbox = self._open_inbox()
        self._durable.want_checkpoint()
        while self._durable.is_checkpoint_due():  # A checkpoint begins between two steps.
            inbox.wake()
            await self._wait(STEP)
        if self._saving is None:
            raise Unavailable(self.checkpoint_error or "the checkpoint could not be started")
        await asyncio.shield(self._saving)

    # ---- state ----------------------------------------------------------------------------------

    def trajectories(self) -> tuple[TrajectoryRecord, ...]:
        """Return all unfinished trajectories, including those of an earlier process."""
        return tuple(one.record() for one in self._rollouts.state.trajectories.values())

    def counts(self) -> DriverCounts:
        """Return the counts of trajectories."""
        return self._rollouts.state.counts.copy()

    def stats(self) -> SchedulerStats:
        """Return the statistics of the core."""
        return self._rollouts.stats()

    @property
    def _rollouts(self) -> Rollouts:
        return self._durable.rollouts

    # ---- input of callers -----------------------------------------------------------------------

    def _open_inbox(self) -> Inbox:
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        if self._inbox is None or self._is_closing:
            raise Unavailable("the scheduler is not open")
        return self._inbox

    def _receive_events(self) -> Inbox:
        """Process pending worker events before a caller's entry."""
        inbox = self._open_inbox()
        events, received = inbox.take(), 0
        inbox.wake()
        try:
            for event in events:
                self._durable.receive(event)
                received += 1
        finally:
            if received < len(events) and self._task is not None:
                self._task.cancel()  # A bug: the remaining events are lost, so nothing may go on.
        return inbox

    def _take(self, entry: Entry, worker: Worker | None = None) -> None:
        self._receive_events()
        self._durable.take(entry, worker)

    async def _send(self, entry: Entry, worker: Worker | None = None) -> None:
        """Accept an entry, and return when it is journaled and the core has stepped."""
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

    async def _run(self, inbox: Inbox, over: asyncio.Future[None]) -> None:
        """Wait for the end; callbacks of the inbox do the work, since tasks cost more per event."""
        await over
        self._advance(inbox.take())

    def _on_events(self) -> None:
        inbox, over = self._inbox, self._over
        if inbox is None or over is None or over.done():
            return
        with _Ending(over):
            self._advance(inbox.take())

    def _advance(self, events: Sequence[WorkerEvent]) -> None:
        """Process worker events, step the core, and wake callers with the outcomes."""
        for event in events:
            self._durable.receive(event)
        if self._durable.needs_step():
            for outcome in self._durable.step():
                self._waiters.resolve(outcome)
        if self._durable.is_checkpoint_due() and self._saving is None:
            try:
                self._begin_saving()
            except Unavailable as error:
                self.checkpoint_error = str(error)  # The current journal has all steps.
        self._waiters.resolve_step()

    def _begin_saving(self) -> None:
        head, copy = self._durable.begin_checkpoint()
        saving = asyncio.get_running_loop().create_task(
            self._save(head, copy), name="rose-checkpoint"
        )
        self._saving = saving
        saving.add_done_callback(self._has_saved)

    async def _save(self, head: SchedulerCheckpoint, copy: SlowCopy) -> None:
        while not copy.advance():
            await asyncio.sleep(0)  # Steps and callers run between two slices.
        await asyncio.to_thread(self._durable.save, head, copy)

    def _has_saved(self, saving: asyncio.Task[None]) -> None:
        self._saving = None
        failure = None if saving.cancelled() else saving.exception()
        self.checkpoint_error = None if failure is None else sentence(failure)


class _Ending:
    """Passes any exception to the scheduler's task, which ends with it."""

    def __init__(self, over: asyncio.Future[None]) -> None:
        self._over = over

    def __enter__(self) -> None:
        """Do nothing: the exit acts."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Pass an exception on, and end it here."""
        if error is not None:
            self._over.set_exception(error)
        return error is not None


def _number(name: str, value: int) -> int:
    number: int = checked_as(Count, name, value)
    return number


async def _outlast(task: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Wait for a task, even if the wait is cancelled; return the cancellation to raise it later."""
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError as error:
        await _outlast(task)
        return error
    return None
