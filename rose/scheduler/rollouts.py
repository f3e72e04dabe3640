"""All trajectories of a scheduler, its workers, and the core that places turns on them.

The core only counts tokens; this module keeps them, and no other module moves them. The state
depends only on the input and its times: a replay of the same input gives the same state. The
journal relies on that.
"""

from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace

from rose.errors import InternalError, InvalidArgument, RoseError, check
from rose.scheduler import events
from rose.scheduler.core import SchedulerCore
from rose.scheduler.driver_events import (
    Asked,
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
from rose.scheduler.driver_trajectory import DriverTrajectory, Phase, SlowCopy
from rose.scheduler.events import (
    Action,
    Admit,
    Deliver,
    Drop,
    DropReason,
    Event,
    Start,
    Stop,
    TurnDone,
    TurnEnded,
    TurnProgress,
)
from rose.scheduler.state import Gone, Outcome, RolloutsState
from rose.scheduler.stats import SchedulerStats
from rose.scheduler.watching import ErrorGuard, Watches, broken_worker
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    VersionCommitted,
    Worker,
    WorkerLost,
    failed_output,
)
from rose.units import NS_PER_S

# A longer gap between steps than `_DEAF_NS` means that the process was suspended and renewals of
# grants were lost. Workers then get `_HEAR_NS` to renew, because an expired grant never becomes
# valid again.
_DEAF_NS: Final = NS_PER_S
_HEAR_NS: Final = 2 * NS_PER_S
_RATES: Final = ("prefill_tokens_per_s", "decode_step_ms", "decode_ms_per_sequence")


class Rollouts:
    """Accepts entries, steps the core with them, and keeps the results. One thread at a time.

    Args:
        core: decides on actions.
        state: the state that matches the core's.
        watches: observers of turns.
    """

    def __init__(self, core: SchedulerCore, state: RolloutsState, watches: Watches) -> None:
        self.state = state
        self.watches = watches
        self._core = core
        # Workers that receive requests. Other workers of `state` joined in an earlier process, and
        # have not rejoined yet.
        self._workers: dict[int, Worker] = {}
        self._events: list[Event] = []
        self._outputs: dict[int, TurnOutput] = {}  # by index of their TurnProgress in the events
        self._outcomes: list[Outcome] = []
        self.refusals: list[
            TurnOutput | WorkerLost
        ] = []  # to be processed as events of their workers
        self._copy = SlowCopy({})

    # ---- input and output -----------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Accept an entry for the next step.

        Raises:
            InvalidArgument: the entry contradicts earlier ones; nothing has changed.
        """
        match entry:
            case TurnOutput():
                self._receive_output(entry)
            case Begun():
                self._begin(entry)
            case Asked():
                self._ask(entry)
            case Ended():
                self._end(entry)
            case Cut():
                self._cut(entry)
            case WorkerLost() | GrantChanged() | VersionCommitted():
                self._receive(entry)
            case Registered():
                self._register(entry)
            case _:
                self._take_setting(entry)

    def _take_setting(self, entry: Entry) -> None:
        """Accept an entry of the trainer or the operator."""
        match entry:
            case TrainerPublished():
                job = self.state.counts.job(entry.job)
                job.published = max(job.published, entry.version)
                self._events.append(events.VersionPublished(entry.version, entry.job))
            case Used():
                self._consume(entry)
            case JobAdded():
                limits = entry.batch_trajectories, entry.max_staleness, entry.weight
                self._events.append(events.JobJoined(entry.job, *limits))
            case RatesMeasured():
                self._measure(entry)
            case Drained():
                if entry.worker in self.state.workers:
                    self.state.drained.add(entry.worker)
                self._events.append(events.WorkerDrained(entry.worker))
            case PauseChanged(is_paused=True):
                self._events.append(events.Paused(entry.is_recalling))
            case PauseChanged():
                self._events.append(events.Resumed())

    def step(self, now_ns: int) -> list[Outcome]:
        """Step the core with the accepted entries, and return the outcomes, in order.

        Raises:
            InvalidArgument: the entries contradict each other.
            InternalError: a bug in the scheduler.
        """
        news, self._events = self._events, []
        outputs, self._outputs = self._outputs, {}
        if now_ns - self.state.now_ns > _DEAF_NS:
            self._core.keep_grants(now_ns + _HEAR_NS)
        self.state.now_ns = now_ns
        actions = self._core.step(news, now_ns)
        while follow_ups := [event for one in actions for event in self._act(one, outputs)]:
            actions, outputs = self._core.step(follow_ups, now_ns), {}
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def stats(self) -> SchedulerStats:
        """Return the statistics of the core."""
        return self._core.stats()

    def is_idle(self) -> bool:
        """Return True if every trajectory is in its environment: then time changes only grants."""
        return self._core.is_idle and not self._events

    def turns_on(self, worker: int | None) -> int:
        """Return the number of turns on a worker, or on any worker, after the last step."""
        return self._core.on_workers if worker is None else self._core.turns_on(worker)

    def begin_copy(self) -> SlowCopy:
        """Return an object that copies all trajectories in their present state, slice by slice.

        An earlier copy in progress stops.
        """
        self._copy = SlowCopy(self.state.trajectories)
        return self._copy

    def trajectory(self, trajectory: int) -> DriverTrajectory:
        """Return an unfinished trajectory, which the caller may change.

        Raises:
            InvalidArgument: there is no such trajectory.
        """
        state = self.state.trajectories.get(trajectory)
        if state is None:
            what = "is over" if trajectory in self.state.used else "was never started"
            raise InvalidArgument(f"trajectory {trajectory} {what}")
        self._copy.keep(state)
        return state

    def register(self, registered: Registered, worker: Worker) -> None:
        """Add a worker, which gets requests from the next step on.

        Raises:
            InvalidArgument: the number is taken; nothing has changed.
        """
        self.check_absent(registered.worker)
        self.take(registered)
        self._workers[registered.worker] = worker

    def check_absent(self, worker: int) -> None:
        """Raise InvalidArgument if the worker is registered."""
        if self.is_here(worker):
            raise InvalidArgument(f"worker {worker} is registered already")

    def is_here(self, worker: int) -> bool:
        """Return True if a worker is registered and not lost, after all accepted entries."""
        return worker in self._workers

    def absent(self) -> list[int]:
        """Return the numbers of workers of an earlier process that have not rejoined."""
        return [number for number in self.state.workers if number not in self._workers]

    def stop_turns(self, number: int | None = None) -> None:
        """Recall every turn of a worker, or of all workers; errors of workers are ignored."""
        for state in self.state.trajectories.values():
            on = state.worker
            if on in self._workers and number in (None, on):
                with ErrorGuard():
                    self._workers[on].stop_turn(state.number)

    # ---- entries --------------------------------------------------------------------------------

    def _begin(self, begun: Begun) -> None:
        number = begun.trajectory
        if number in self.state.trajectories or number in self.state.used:
            raise InvalidArgument(f"trajectory number {number} was used before: choose another")
        self.state.trajectories[number] = DriverTrajectory(
            number, begun.group, begun.job, begun.seed
        )
        self.state.counts.begun += 1
        self._events.append(events.TrajectoryCreated(number, begun.group, begun.job))

    def _ask(self, asked: Asked) -> None:
        state = self.trajectory(asked.trajectory)
        state.ask(asked)
        tokens = len(state.context), asked.sampling.max_new_tokens
        versions = asked.versions.low, asked.versions.high
        self._events.append(events.TurnReady(asked.trajectory, asked.turn, *tokens, *versions))

    def _cut(self, cut: Cut) -> None:
        state = self.trajectory(cut.trajectory)
        if state.phase is not Phase.SPEAKING or cut.turn != len(state.turns):
            raise InvalidArgument(
                f"trajectory {state.number}: turn {cut.turn} is not the current turn"
            )
        if cut.tokens > len(state.tokens):
            raise InvalidArgument(
                f"trajectory {state.number}: cannot cut turn {cut.turn} to {cut.tokens} tokens, "
                f"because only {len(state.tokens)} were delivered"
            )
        # Its end may be among the accepted events; then the cut is left to `conclude`.
        state.cut = cut.tokens
        self._events.append(events.TurnCut(cut.trajectory, cut.turn, cut.tokens))

    def _end(self, ended: Ended) -> None:
        state = self.trajectory(ended.trajectory)
        is_thinking = state.phase is Phase.THINKING
        if ended.is_wanted and not is_thinking:
            raise InvalidArgument(
                f"trajectory {state.number} cannot be finished now, because {state.why_busy()}"
            )
        if state.phase is Phase.ENDING:
            return
        self._events.append(events.TrajectoryEnded(state.number))
        if not is_thinking:
            state.phase = Phase.ENDING  # The core will drop it.
            return
        self._forget(state)
        if ended.is_wanted:
            self.state.counts.finished += 1
            self.state.counts.job(state.job).finished += 1
            return
        self.state.counts.given_up += 1
        self._events.append(events.Consumed(1, state.job))  # The trainer need not wait for it.
        self._outcomes.append(Gone(state.number, DropReason.GIVEN_UP))

    def _consume(self, used: Used) -> None:
        counts = self.state.counts.job(used.job)
        left = counts.finished - counts.consumed
        if used.trajectories > left:
            raise InvalidArgument(
                f"cannot consume {used.trajectories} trajectories: only {left} finished ones are "
                "left"
            )
        counts.consumed += used.trajectories
        self._events.append(events.Consumed(used.trajectories, used.job))

    def _measure(self, measured: RatesMeasured) -> None:
        before = self.state.workers.get(measured.worker)
        if before is None:
            return  # It was lost.
        rates = {name: getattr(measured, name) for name in _RATES}
        self._note_worker(before, **rates)
        self._events.append(events.WorkerMeasured(measured.worker, *rates.values()))

    def _note_worker(self, registered: Registered, **changes: Any) -> None:
        capabilities = replace(registered.capabilities, **changes)
        of = registered.worker, registered.kind
        self.state.workers[registered.worker] = Registered(*of, capabilities)

    def _register(self, registered: Registered) -> None:
        number = registered.worker
        if self._is_back(registered):
            self._resume(registered)
        else:
            if number in self.state.workers:
                why = "it registered again, drained or with other capabilities"
                self._lose(WorkerLost(number, why, is_crash=False))
            self._events.append(registered.capabilities.joined(number, registered.kind))
        self.state.workers[number] = registered

    def _is_back(self, registered: Registered) -> bool:
        """Return True if this worker was registered before, with the same kind and capabilities.

        Its version and rates may have changed.
        """
        before = self.state.workers.get(registered.worker)
        if before is None or registered.worker in self.state.drained:
            return False
        now = registered.capabilities
        changes = {name: getattr(now, name) for name in ("version", *_RATES)}
        was = replace(before.capabilities, **changes)
        return (before.kind, was) == (registered.kind, now)

    def _resume(self, registered: Registered) -> None:
        """Let the worker continue; its turns resume at their last tokens."""
        now = registered.capabilities
        self._events.append(events.VersionCommitted(registered.worker, now.version))
        rates = (getattr(now, name) for name in _RATES)
        self._events.append(events.WorkerMeasured(registered.worker, *rates))
        for state in self.state.trajectories.values():
            if state.worker == registered.worker:
                where = state.number, len(state.turns), registered.worker, state.grant_epoch
                self._events.append(TurnEnded(*where, TurnEnd.INTERRUPTED))

    def _receive(self, event: WorkerLost | GrantChanged | VersionCommitted) -> None:
        match event:
            case WorkerLost():
                self.state.workers.pop(event.worker, None)
                self._lose(event)
            case GrantChanged():
                grant = event.grant_epoch, event.kv_tokens, event.ttl_ms
                self._events.append(events.GrantChanged(event.worker, *grant))
            case VersionCommitted():
                if before := self.state.workers.get(event.worker):
                    self._note_worker(before, version=event.version)
                self._events.append(events.VersionCommitted(event.worker, event.version))

    def _lose(self, lost: WorkerLost) -> None:
        self.watches.show(lambda watch: watch.end_all(lost.worker))
        self._workers.pop(lost.worker, None)
        self.state.drained.discard(lost.worker)
        self._events.append(events.WorkerLost(lost.worker, lost.is_crash))

    def _receive_output(self, output: TurnOutput) -> None:
        where = output.trajectory, output.turn, output.worker, output.grant_epoch
        count, versions = len(output.tokens), output.versions
        if count:
            self._outputs[len(self._events)] = output
            range_ = min(versions), max(versions)
            self._events.append(TurnProgress(*where, output.first_token, count, *range_))
        if output.end is not None or output.cached_tokens or output.extras:
            self._note_output(output)
        if output.end is not None:
            self.watches.show(lambda watch: watch.end(output.trajectory, output.worker))
            self._events.append(TurnEnded(*where, output.end, output.first_token + count))

    def _note_output(self, output: TurnOutput) -> None:
        state = self.state.trajectories.get(output.trajectory)
        if state is not None and state.phase is Phase.SPEAKING:
            self._copy.keep(state)
            state.note(output)

    def _forget(self, state: DriverTrajectory) -> None:
        del self.state.trajectories[state.number]
        self.state.used.add(state.number)

    # ---- actions of the core --------------------------------------------------------------------

    def _act(self, action: Action, outputs: dict[int, TurnOutput]) -> Iterable[Event]:
        """Carry out an action; return the events it causes, for the core's next step."""
        match action:
            case Deliver():
                self._deliver(action, outputs[action.event])
            case Admit():
                self._known(action.trajectory).phase = Phase.THINKING
                self._outcomes.append(action)
            case TurnDone():
                return self._turn_done(action.trajectory)
            case Start():
                return self._start(action)
            case Stop():
                self._stop(action.trajectory, action.worker)
            case Drop():
                self._drop(action.trajectory, DropReason[action.reason])
        return ()

    def _deliver(self, action: Deliver, output: TurnOutput) -> None:
        number, skip, tokens = output.trajectory, action.skip, action.tokens
        state = self._known(number)
        if output.first_token + skip != len(state.tokens):
            raise InternalError(f"trajectory {number}: a token would be missing or appear twice")
        state.append(output, skip, tokens)
        self.watches.show(lambda watch: watch.add(number, tokens))

    def _start(self, start: Start) -> Iterable[Event]:
        state = self._known(start.trajectory)
        check(
            start.first_token == len(state.tokens),
            f"trajectory {start.trajectory}: a turn would resume at the wrong token",
        )
        if state.has_ended():
            # The turn's last token was delivered, but the worker was lost before it reported the
            # end.
            where = start.trajectory, start.turn, start.worker, start.grant_epoch
            return (TurnEnded(*where, TurnEnd.FINISHED, start.first_token),)
        # The core learns of a loss before it places turns.
        check(start.worker in self.state.workers, "a turn would start on a worker that is lost")
        request, kind = state.request(start), self.state.workers[start.worker].kind
        self.watches.show(lambda watch: watch.begin(request, start.worker, kind))
        worker = self._workers.get(start.worker)
        if worker is None:
            return ()  # The worker has not rejoined yet; when it does, this turn is interrupted.
        guard = ErrorGuard()
        with guard:
            worker.start_turn(request)
        match guard.error:
            case RoseError() as error:
                self.refusals.append(failed_output(request, start.worker, str(error)))
            case Exception() as error:
                self.refusals.append(broken_worker(start.worker, error))
        return ()

    def _stop(self, trajectory: int, number: int) -> None:
        """Tell a worker to stop a turn; if that raises, the worker is lost."""
        if worker := self._workers.get(number):
            guard = ErrorGuard()
            with guard:
                worker.stop_turn(trajectory)
            if guard.error is not None:
                self.refusals.append(broken_worker(number, guard.error))

    def _turn_done(self, trajectory: int) -> Iterable[Event]:
        state = self._known(trajectory)
        if state.phase is Phase.ENDING:
            # The trajectory was given up in the step in which its turn ended, so the core counts
            # the trajectory as done.
            self._forget(state)
            self.state.counts.given_up += 1
            self._outcomes.append(Gone(trajectory, DropReason.GIVEN_UP))
            return (events.Consumed(1, state.job),)
        result = state.conclude()
        self.state.counts.turns += 1
        self.state.counts.resumed += result.resumed > 0
        self._outcomes.append(result)
        return ()

    def _drop(self, trajectory: int, reason: DropReason) -> None:
        state = self._known(trajectory)
        self._forget(state)
        if state.phase is Phase.ENDING:
            self.state.counts.given_up += 1
        else:
            self.state.counts.dropped += 1
        error = state.error
        if reason is DropReason.VERSION:
            there = (one.capabilities.version for one in self.state.workers.values())
            error = str(state.accepted.conflict(there))
        self._outcomes.append(Gone(trajectory, reason, error))

    def _known(self, trajectory: int) -> DriverTrajectory:
        state = self.state.trajectories.get(trajectory)
        if state is None:
            raise InternalError(f"the core acts on trajectory {trajectory}, which is over")
        self._copy.keep(state)
        return state
