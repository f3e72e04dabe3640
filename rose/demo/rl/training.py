"""The life of a trainer: it learns, publishes, and uses no version's number twice."""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rose.clock import Clock
from rose.demo.rl.checkpoint import Progress, from_ranges, save_checkpoint, to_ranges
from rose.demo.rl.intake import Intake
from rose.demo.rl.masters import Bits
from rose.demo.rl.messages import Submitted, TrainerStatus
from rose.demo.rl.trainer import PolicyTrainer, TrainStats
from rose.demo.rl.trajectory import Trajectory
from rose.errors import InvalidArgument
from rose.units import NS_PER_MS, NS_PER_S

_TAKE_S: Final = 0.2  # how long an idle trainer takes to notice that it should stop
_HISTORY: Final = 1024
# A checkpoint comes then, also when no step changes the weights for long.
_UNSAVED_MAX: Final = 1024
_WAITING_BATCHES: Final = 64


@dataclass(frozen=True, slots=True)
class Traffic:
    """What receivers of weights were sent, and what whole weights would have been."""

    bytes_sent: int
    dense_bytes: int


class WeightsOutlet(Protocol):
    """Where versions of the weights go; it was opened with the weights to begin with."""

    @property
    def version(self) -> int:
        """The newest version's n."""
        ...

    @property
    def address(self) -> str:
        """Where receivers ask."""
        ...

    @property
    def token(self) -> str:
        """What they must show."""
        ...

    def publish(self, bits: Bits) -> None:
        """Make `bits` version `version + 1`; they are copied."""
        ...

    def traffic(self) -> Traffic:
        """Return what was sent until now."""
        ...

    def close(self) -> None:
        """Serve nobody any longer."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The pace of training.

    Args:
        batch: trajectories of a step, at least; groups are never split.
        max_staleness: as in `TrainerSettings`.
        publish_every_s: versions are at least so far apart.
        checkpoint_every: versions between two checkpoints, > 0.
    """

    batch: int = 8
    max_staleness: int = 8
    publish_every_s: float = 3.0
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        """Refuse a pace that nobody can keep."""
        if self.batch < 1 or self.checkpoint_every < 1 or not self.publish_every_s >= 0:
            raise InvalidArgument(
                f"batch {self.batch}, checkpoint_every {self.checkpoint_every}, publish_every_s "
                f"{self.publish_every_s}: give at least 1, 1 and 0"
            )


def waiting_max(batch: int, group_size: int) -> int:
    """Return how many trajectories may wait at a trainer to be learned from."""
    return _WAITING_BATCHES * max(batch, group_size)


def unsaved_max(batch: int, group_size: int) -> int:
    """Return how many trajectories a trainer may have taken that die with it.

    All that waited is learned from at once, before what was learned is saved, and meanwhile as much
    may come to wait again.
    """
    return _UNSAVED_MAX + 2 * waiting_max(batch, group_size)


class Training:
    """One incarnation of a trainer.

    `run` in one thread; `submit` and `status` from any. A version's number is reserved in the
    checkpoint before it is used, so one that starts after a kill begins above all of them.

    Args:
        trainer: with the weights of the checkpoint.
        intake: knows what the checkpoint has learned.
        weights: opened with the trainer's bits.
        checkpoint: where to save.
        progress: this incarnation's, already saved there.
        settings: the pace.
        clock: for the pace.
    """

    def __init__(
        self,
        *,
        trainer: PolicyTrainer,
        intake: Intake,
        weights: WeightsOutlet,
        checkpoint: Path,
        progress: Progress,
        settings: TrainingSettings,
        clock: Clock,
    ) -> None:
        self._trainer = trainer
        self._intake = intake
        self._weights = weights
        self._path = checkpoint
        self._settings = settings
        self._clock = clock
        self._is_ahead = False  # the trainer has learned something nobody was sent
        # That a trajectory can be of: one that is in the log can speak before it is counted there.
        self._newest = weights.version
        self._published_ns = clock.now_ns()
        self._learned = from_ranges(progress.learned)
        self._lock = threading.Lock()  # guards all below, which `status` reads
        self._progress = progress
        self._durable = len(self._learned)
        self._checkpoint_n = weights.version
        self._dropped_stale = progress.dropped_stale
        self._passed_over = 0
        self._steps = trainer.steps
        self._versions = 0
        self._last: TrainStats | None = None
        self._staleness: Counter[int] = Counter()
        self._publish_ms: deque[float] = deque(maxlen=_HISTORY)

    def submit(self, trajectories: Sequence[Trajectory]) -> Submitted:
        """Take trajectories to learn from; see `Intake.submit`."""
        return self._intake.submit(trajectories, newest=self._newest)

    def run(self, stop: threading.Event) -> None:
        """Learn until `stop` is set, then save; a step that has begun is finished first.

        Raises:
            RoseError: a version or a checkpoint was refused; what was saved last is whole.
        """
        while not stop.is_set():
            self.turn(timeout_s=_TAKE_S)
        self._save(next_version=self._progress.next_version)

    def turn(self, *, timeout_s: float) -> None:
        """Learn from a batch, if one comes in time, and publish what was learned, if it is due."""
        if batch := self._intake.take(self._settings.batch, timeout_s=timeout_s):
            self._learn(batch)
        self._drop_stale()
        if len(self._learned) - self._durable >= _UNSAVED_MAX:
            self._save(next_version=self._progress.next_version)
        due_ns = self._published_ns + self._settings.publish_every_s * NS_PER_S
        if self._is_ahead and self._clock.now_ns() >= due_ns:
            self._publish()

    def status(self) -> TrainerStatus:
        """Return where it is now."""
        traffic = self._weights.traffic()
        version, consumed, waiting = self._weights.version, self._intake.known, self._intake.waiting
        with self._lock:
            return TrainerStatus(
                incarnation=self._progress.incarnation,
                version=version,
                steps=self._steps,
                reward_mean=self._last.reward_mean if self._last else None,
                loss=self._last.loss if self._last else None,
                staleness=dict(self._staleness),
                dropped_stale=self._dropped_stale,
                passed_over=self._passed_over,
                consumed=consumed,
                waiting=waiting,
                durable=self._durable,
                versions=self._versions,
                bytes_sent=traffic.bytes_sent,
                dense_bytes=traffic.dense_bytes,
                publish_ms=tuple(self._publish_ms),
                checkpoint_n=self._checkpoint_n,
            )

    def _learn(self, batch: Sequence[Trajectory]) -> None:
        stats = self._trainer.step(batch, published=self._weights.version)
        self._learned.update(one.number for one in batch)
        self._is_ahead |= stats.is_changed
        with self._lock:
            self._last = stats
            self._steps = self._trainer.steps
            self._staleness.update(stats.staleness)
            self._dropped_stale += stats.dropped_stale
            self._passed_over += stats.passed_over

    def _drop_stale(self) -> None:
        version = self._weights.version
        dropped = self._intake.drop_stale(version - self._settings.max_staleness)
        self._learned.update(one.number for one in dropped)
        with self._lock:
            self._staleness.update(version - one.version_min for one in dropped)
            self._dropped_stale += len(dropped)

    def _publish(self) -> None:
        began_ns = self._clock.now_ns()
        n = self._weights.version + 1
        if n >= self._progress.next_version:
            self._save(next_version=n + self._settings.checkpoint_every)
        saved_ns = self._clock.now_ns()
        self._newest = n
        self._weights.publish(self._trainer.bits())
        self._is_ahead = False
        self._published_ns = began_ns
        with self._lock:
            self._versions += 1
            self._publish_ms.append((self._clock.now_ns() - saved_ns) / NS_PER_MS)

    def _save(self, *, next_version: int) -> None:
        progress = Progress(
            run=self._progress.run,
            incarnation=self._progress.incarnation,
            next_version=next_version,
            learned=to_ranges(self._learned),
            dropped_stale=self._dropped_stale,
        )
        save_checkpoint(self._path, self._trainer.state(), progress)
        with self._lock:
            self._progress = progress
            self._durable = len(self._learned)
            self._checkpoint_n = self._weights.version
