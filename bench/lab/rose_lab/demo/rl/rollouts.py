"""Rollouts of an RL loop: a fixed number of concurrent trajectories in their own thread."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Event
from typing import Any, Final

from rose.clock import Clock
from rose.errors import check
from rose.scheduler import (
    Capabilities,
    ElasticRolloutScheduler,
    PlacementPolicy,
    SchedulerSettings,
    TrajectoryDropped,
)
from rose.scheduler.events import Consumed, VersionPublished
from rose.scheduler.worker import Worker, WorkerEvent
from rose_lab.demo.environments import task
from rose_lab.demo.record import TrajectoryCounts
from rose_lab.demo.rl.background import Background
from rose_lab.demo.rl.history import History
from rose_lab.demo.rl.play import play
from rose_lab.demo.rl.settings import RolloutLimits
from rose_lab.demo.rl.trajectory import Trajectory


class Groups:
    """Hands out group numbers from 0: each `size` times, and again for each dropped trajectory."""

    def __init__(self, size: int) -> None:
        self._fresh = (place // size for place in count())
        self._again: deque[int] = deque()

    def take(self) -> int:
        """Return the group of the next trajectory; groups with a dropped trajectory come first."""
        return self._again.popleft() if self._again else next(self._fresh)

    def give_back(self, group: int) -> None:
        """Report that a trajectory of `group` was dropped."""
        self._again.append(group)


# Separates the sampling seeds of different runs.
_SAMPLING_STRIDE: Final = 1_000_003

_Make = Callable[[], Coroutine[Any, Any, None]]


class RolloutThread(Background):
    """Keeps `in_flight` trajectories running until it is stopped.

    The thread runs an event loop with the scheduler and one coroutine per trajectory. Workers only
    put events into the scheduler's inbox, so an engine never waits for this thread.

    Args:
        settings: number and size limits of trajectories.
        scheduler: scheduler settings.
        seed: seed of tasks and sampling, >= 0.
        wait_s: maps `(trajectory, turn)` to the duration of that turn's tool, in seconds.
        on_finished: gets each finished trajectory in this thread; must not block.
        clock: clock of the scheduler and the history.

    Attributes:
        scheduler: other threads may only call `receive` until `stop` has returned.
        history: events of the scheduler and its workers.
    """

    def __init__(
        self,
        settings: RolloutLimits,
        *,
        scheduler: SchedulerSettings,
        seed: int,
        wait_s: Callable[[int, int], float],
        on_finished: Callable[[Trajectory], None],
        clock: Clock,
    ) -> None:
        super().__init__("rose-rollouts")
        self.history = History(clock)
        self.scheduler = ElasticRolloutScheduler(
            scheduler, PlacementPolicy.JOINT, clock=clock, watches=(self.history,)
        )
        self._settings = settings
        self._seed = seed
        self._wait_s = wait_s
        self._on_finished = on_finished
        self._is_open = Event()
        # Both are set before `_is_open` is.
        self._loop: asyncio.AbstractEventLoop
        self._over: asyncio.Future[None]
        # Only this thread writes the rest; other threads read counts.
        self._tasks: set[asyncio.Task[None]] = set()
        self._groups = Groups(settings.group_size)
        self._in_flight: set[int] = set()
        self._started = self._finished = self._dropped = 0

    # ---- any thread -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, and return when workers may join and send events."""
        super().start()
        self._is_open.wait()

    def receive(self, event: WorkerEvent) -> None:
        """Queue a worker's event; never blocks, so an engine may call it within a step."""
        self.scheduler.receive(event)

    def join(self, worker: Worker, capabilities: Capabilities) -> None:
        """Register a worker without waiting; its grant may be reported before or after."""
        self._call(self._spawn, partial(self.scheduler.register, worker, capabilities))

    def accompany(self, make: _Make) -> None:
        """Run a coroutine in this thread until it ends, or the thread is stopped."""
        self._call(self._spawn, make)

    def send(self, news: VersionPublished | Consumed) -> None:
        """Report a trainer event, without waiting."""
        match news:
            case VersionPublished():
                self._call(self._spawn, partial(self.scheduler.publish, news.version))
            case Consumed():
                self._call(self._spawn, partial(self.scheduler.consumed, news.trajectories))

    def stop(self) -> None:
        """Stop the thread and all turns in flight; their trajectories stay unfinished.

        Raises:
            DeadlineExceeded: the thread does not end.
        """
        with self._changed:
            self._is_stopping = True
        if self._is_open.is_set():
            self._call(self._end, None)
        super().stop()

    def counts(self) -> TrajectoryCounts:
        """Return the trajectory counts that this thread knows; exact after `stop`."""
        in_flight, over = len(self._in_flight), self._finished + self._dropped
        return TrajectoryCounts(
            started=self._started,
            finished=self._finished,
            dropped=self._dropped,
            in_flight=in_flight,
            resumed=len(self.history.moved),
            lost=self._started - over - in_flight,
        )

    def _call(self, act: Callable[..., None], *arguments: object) -> None:
        """Schedule a call in this thread, unless it has ended."""
        check(self._is_open.is_set(), "start must be called before any other method")
        with suppress(RuntimeError):  # The event loop is closed.
            self._loop.call_soon_threadsafe(act, *arguments)

    # ---- this thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            asyncio.run(self._roll_out())
        finally:
            self._is_open.set()

    async def _roll_out(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        async with self.scheduler:
            self._is_open.set()
            for _ in range(self._settings.in_flight):
                self._spawn(self._play_on)
            await self._over

    def _spawn(self, make: _Make) -> None:
        """Run a coroutine concurrently; its error ends all others."""
        spawned = asyncio.ensure_future(make())
        self._tasks.add(spawned)
        spawned.add_done_callback(self._has_ended)

    def _has_ended(self, spawned: asyncio.Task[None]) -> None:
        self._tasks.discard(spawned)
        error = None if spawned.cancelled() else spawned.exception()
        if error is not None:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    async def _play_on(self) -> None:
        """Play trajectories one after the other."""
        size = self._settings.group_size
        while True:
            number, group = self._started, self._groups.take()
            self._started += 1
            self._in_flight.add(number)
            finished = None
            with suppress(TrajectoryDropped):
                finished = await play(
                    self.scheduler,
                    task(self._seed, group * size, group_size=size),
                    number=number,
                    seed=self._seed * _SAMPLING_STRIDE + number,
                    settings=self._settings,
                    wait_s=self._wait_s,
                )
            self._in_flight.discard(number)
            if finished is None:
                self._dropped += 1
                self._groups.give_back(group)
            else:
                self._finished += 1
                self._on_finished(finished)
