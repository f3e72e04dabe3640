"""Drives a core: what workers say becomes its events, and what it decides is carried out.

The core counts tokens; `Rollouts` keeps them, as its `Front`. Here is the one place where tokens
change hands.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from rose.errors import RoseError, check, sentence
from rose.scheduler.events import (
    Action,
    Admit,
    Consumed,
    Deliver,
    Drop,
    DropReason,
    Event,
    JobJoined,
    SchedulerStats,
    Start,
    Stop,
    TrajectoryCreated,
    TrajectoryEnded,
    TurnDone,
    TurnEnded,
    TurnProgress,
    TurnReady,
    VersionPublished,
    WorkerJoined,
)
from rose.scheduler.order import Order
from rose.scheduler.worker import (
    TurnEnd,
    TurnOutput,
    TurnRequest,
    Worker,
    WorkerEvent,
    WorkerKind,
    WorkerLost,
)
from rose.units import NS_PER_S

# The process stood still: workers renewed their leases, and nobody has heard it yet. They have so
# much time to be heard, as a lease that runs out is over for ever.
_DEAF_NS: Final = NS_PER_S
_HEAR_NS: Final = 2 * NS_PER_S

News: TypeAlias = (
    WorkerEvent
    | WorkerJoined
    | VersionPublished
    | Consumed
    | JobJoined
    | TrajectoryCreated
    | TurnReady
    | TrajectoryEnded
    | TurnEnded
)


class Core(Protocol):
    """What decides: `SchedulerCore`, or something around one."""

    def step(self, events: Sequence[Event], now_ns: int) -> list[Action]:
        """Apply events, and return what is to be done."""
        ...

    def keep_leases(self, until_ns: int) -> None:
        """Let no lease run out before then."""
        ...

    def stats(self) -> SchedulerStats:
        """Return what is now, and what was counted."""
        ...


class Front(Protocol):
    """Whoever keeps the tokens."""

    def refused(self, news: TurnOutput | WorkerLost) -> None:
        """Hear that a worker would not queue a turn, or is broken; news for a later `advance`."""
        ...

    def admitted(self, trajectory: int) -> None:
        """Let a trajectory start."""
        ...

    def said(self, trajectory: int) -> Sequence[int]:
        """Return the tokens of its present turn so far."""
        ...

    def has_ended(self, trajectory: int) -> bool:
        """Whether its present turn has its last token already."""
        ...

    def request(self, start: Start) -> TurnRequest:
        """Return what the worker of `start` is to run; it is asked at once."""
        ...

    def say(
        self,
        trajectory: int,
        tokens: tuple[int, ...],
        logprobs: tuple[float, ...],
        versions: tuple[int, ...],
    ) -> None:
        """Add the next tokens to its present turn."""
        ...

    def turn_done(self, trajectory: int) -> Iterable[Event]:
        """Take a turn as whole, and return what the core must hear of that in its next step."""
        ...

    def dropped(self, trajectory: int, reason: DropReason) -> None:
        """Forget a trajectory."""
        ...


class Watch(Protocol):
    """Sees which worker has which part of which turn; nothing depends on what it does."""

    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """A worker was asked."""
        ...

    def add(self, trajectory: int, tokens: int) -> None:
        """Tokens of a turn were taken; they may come after the end of its part."""
        ...

    def end(self, trajectory: int, worker: int) -> None:
        """A worker says that a turn ended there; it may have none of it."""
        ...

    def end_all(self, worker: int) -> None:
        """A worker is gone."""
        ...


class CoreDriver:
    """Between a core, the workers and whoever keeps the tokens. One thread at a time.

    Args:
        core: decides; the driver is its only caller.
        front: keeps the tokens.
        watch: sees the parts of turns.
        now_ns: of the core's last step.
    """

    def __init__(self, core: Core, front: Front, watch: Watch, *, now_ns: int = 0) -> None:
        self.nonsense = 0  # events of workers that no count fits; they change nothing
        self.watch = watch
        self._core = core
        self._front = front
        self._now_ns = now_ns
        # None stands for one that joined in an earlier life of the scheduler, and is not back yet.
        self._workers: dict[int, Worker | None] = {}
        self._kinds: dict[int, WorkerKind] = {}
        # Whose WorkerJoined is on its way to the core, in that order.
        self._joining: list[Worker] = []

    def join(self, worker: Worker) -> None:
        """Carry orders to `worker` once the news comes that it joined; any thread."""
        self._joining.append(worker)

    def expect(self, number: int, kind: WorkerKind) -> None:
        """Take it that the core knows a worker from an earlier life, who is not back yet."""
        self._workers[number] = None
        self._kinds[number] = kind

    def attach(self, worker: Worker) -> None:
        """Carry orders to a worker that is back."""
        self._workers[worker.number] = worker

    def worker(self, number: int) -> Worker | None:
        """Return who is called so, if there is somebody to carry orders to."""
        return self._workers.get(number)

    def attached(self) -> list[Worker]:
        """Return those that orders are carried to."""
        return [worker for worker in self._workers.values() if worker is not None]

    def advance(self, news: Iterable[News], now_ns: int) -> None:
        """Step the core with what happened, and with what follows from its answers.

        Args:
            news: since the last time; what workers say of it is `believable`.
            now_ns: on the core's clock, never less than before.

        Raises:
            InvalidArgument: the front contradicts itself; what came of the steps before stays.
            InternalError: a bug in the scheduler.
        """
        events: list[Event] = []
        outputs: dict[int, TurnOutput] = {}
        for one in news:
            self._translate(one, events, outputs)
        if now_ns - self._now_ns > _DEAF_NS:
            self._core.keep_leases(now_ns + _HEAR_NS)
        self._now_ns = now_ns
        is_first = True
        while events or is_first:
            actions = self._core.step(events, now_ns)
            events = [event for action in actions for event in self._act(action, outputs)]
            outputs, is_first = {}, False

    # ---- in -------------------------------------------------------------------------------------

    def _translate(self, news: News, events: list[Event], outputs: dict[int, TurnOutput]) -> None:
        match news:
            case TurnOutput():
                self._translate_output(news, events, outputs)
                return
            case WorkerLost():
                self.watch.end_all(news.worker)
                self._workers.pop(news.worker, None)
            case WorkerJoined():
                self._workers[news.worker] = self._take_joining(news.worker)
                self._kinds[news.worker] = news.kind
        events.append(news)

    def _take_joining(self, number: int) -> Worker | None:
        for place, worker in enumerate(self._joining):
            if worker.number == number:
                return self._joining.pop(place)
        return None  # From an earlier life of the scheduler.

    def _translate_output(
        self, output: TurnOutput, events: list[Event], outputs: dict[int, TurnOutput]
    ) -> None:
        if output.tokens:
            outputs[len(events)] = output
            events.append(
                TurnProgress(
                    trajectory=output.trajectory,
                    turn=output.turn,
                    worker=output.worker,
                    lease_epoch=output.lease_epoch,
                    first_token=output.first_token,
                    tokens=len(output.tokens),
                    version_min=min(output.versions),
                )
            )
        if output.end is not None:
            self.watch.end(output.trajectory, output.worker)
            events.append(
                TurnEnded(
                    trajectory=output.trajectory,
                    turn=output.turn,
                    worker=output.worker,
                    lease_epoch=output.lease_epoch,
                    end=output.end,
                    tokens=output.first_token + len(output.tokens),
                )
            )

    # ---- out ------------------------------------------------------------------------------------

    def _act(self, action: Action, outputs: dict[int, TurnOutput]) -> Iterable[Event]:
        """Do what the core decided; return what it must hear of that in its next step."""
        match action:
            case Admit():
                self._front.admitted(action.trajectory)
            case Deliver():
                self._deliver(action, outputs[action.event])
            case TurnDone():
                return self._front.turn_done(action.trajectory)
            case Start():
                return self._start(action)
            case Stop():
                worker = self._workers.get(action.worker)
                if worker is not None:
                    self.stop(worker, action.trajectory)
            case Drop():
                self._front.dropped(action.trajectory, action.reason)
        return ()

    def _deliver(self, action: Deliver, output: TurnOutput) -> None:
        taken = slice(action.skip, action.skip + action.tokens)
        check(
            output.first_token + action.skip == len(self._front.said(action.trajectory)),
            f"trajectory {action.trajectory}: a token would be missing or there twice",
        )
        self._front.say(
            action.trajectory,
            output.tokens[taken],
            output.logprobs[taken],
            output.versions[taken],
        )
        self.watch.add(action.trajectory, action.tokens)

    def _start(self, start: Start) -> Iterable[Event]:
        check(
            start.first_token == len(self._front.said(start.trajectory)),
            f"trajectory {start.trajectory}: a turn would go on at the wrong token",
        )
        if self._front.has_ended(start.trajectory):
            # Its last token was delivered, and the news of its end was lost with its worker.
            ended = TurnEnded(
                trajectory=start.trajectory,
                turn=start.turn,
                worker=start.worker,
                lease_epoch=start.lease_epoch,
                end=TurnEnd.FINISHED,
                tokens=start.first_token,
            )
            return (ended,)
        # Whoever is lost is so in the core before it places anything.
        check(start.worker in self._workers, "a turn would start on a worker that is lost")
        request = self._front.request(start)
        self.watch.begin(request, start.worker, self._kinds[start.worker])
        worker = self._workers[start.worker]
        if worker is None:
            return ()  # Not back yet: when it is, it says that it does not run this.
        order = Order()
        with order:
            worker.start_turn(request)
        match order.error:
            case RoseError() as error:
                self._front.refused(_failed(request, start.worker, str(error)))
            case Exception() as error:
                self._front.refused(_broken(start.worker, error))
        return ()

    def stop(self, worker: Worker, trajectory: int) -> None:
        """Tell a worker to stop a turn; one that cannot is lost, and that is news."""
        order = Order()
        with order:
            worker.stop_turn(trajectory)
        if order.error is not None:
            self._front.refused(_broken(worker.number, order.error))


def _broken(worker: int, error: Exception) -> WorkerLost:
    return WorkerLost(worker, f"it is broken: {sentence(error)}")


def _failed(request: TurnRequest, worker: int, error: str) -> TurnOutput:
    return TurnOutput(
        worker=worker,
        trajectory=request.trajectory,
        turn=request.turn,
        lease_epoch=request.lease_epoch,
        first_token=request.first_token,
        tokens=(),
        logprobs=(),
        versions=(),
        end=TurnEnd.FAILED,
        error=error,
    )
