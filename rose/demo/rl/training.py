"""The life of a trainer: it learns, publishes, and uses no version's number twice."""

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rose.clock import Clock
from rose.demo.rl.checkpoint import Progress, save_checkpoint
from rose.demo.rl.intake import Intake
from rose.demo.rl.messages import Submitted, TrainerStatus
from rose.demo.rl.settings import TrainerSettings
from rose.demo.rl.trainer import Bits, PolicyTrainer
from rose.demo.rl.trajectory import Trajectory
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.version import Version
from rose.transfer.wire.server import serve
from rose.units import NS_PER_S

_TAKE_S: Final = 0.2  # how long an idle trainer takes to notice that it should stop
# A checkpoint comes then, also when no step changes the weights for long.
_UNSAVED_MAX: Final = 1024
_WAITING_BATCHES: Final = 64


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
        weights: "PublishedWeights",
        checkpoint: Path,
        progress: Progress,
        settings: TrainerSettings,
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
        self._learned = set(progress.learned)
        self._lock = threading.Lock()  # guards all below, which `status` reads
        self._progress = progress
        self._durable = len(self._learned)
        self._dropped_stale = progress.dropped_stale
        self._passed_over = 0
        self._steps = trainer.steps
        self._versions = 0
        self._staleness: Counter[int] = Counter()

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
        bytes_sent, dense_bytes = self._weights.traffic()
        version, consumed, waiting = self._weights.version, self._intake.known, self._intake.waiting
        with self._lock:
            return TrainerStatus(
                version=version,
                steps=self._steps,
                staleness=dict(self._staleness),
                dropped_stale=self._dropped_stale,
                passed_over=self._passed_over,
                consumed=consumed,
                waiting=waiting,
                durable=self._durable,
                versions=self._versions,
                bytes_sent=bytes_sent,
                dense_bytes=dense_bytes,
            )

    def _learn(self, batch: Sequence[Trajectory]) -> None:
        stats = self._trainer.step(batch, published=self._weights.version)
        self._learned.update(one.number for one in batch)
        self._is_ahead |= stats.is_changed
        with self._lock:
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
        self._newest = n
        self._weights.publish(self._trainer.bits())
        self._is_ahead = False
        self._published_ns = began_ns
        with self._lock:
            self._versions += 1

    def _save(self, *, next_version: int) -> None:
        progress = Progress(
            incarnation=self._progress.incarnation,
            next_version=next_version,
            learned=frozenset(self._learned),
            dropped_stale=self._dropped_stale,
        )
        save_checkpoint(self._path, self._trainer.state(), progress)
        with self._lock:
            self._progress = progress
            self._durable = len(self._learned)


class PublishedWeights:
    """Opened with the weights to begin with; versions are made by the thread that trains.

    Args:
        bits: (n,) uint16, copied.
        version: what they are.
        address: where receivers ask, on loopback.
        token: what they show.

    Raises:
        InvalidArgument: the address is not on loopback, or the token is none.
        Unavailable: the port is taken.
    """

    def __init__(self, bits: Bits, *, version: Version, address: str, token: str | None) -> None:
        self._log = VersionLog()
        self._publisher = RowPublisher(
            bits, version.run, version.incarnation, version.n, log=self._log
        )
        # Read from other threads, which must not wait for a publication that is under way.
        self._n = version.n
        self._server = serve(self._log, address, token=token)

    @property
    def version(self) -> int:
        """The newest version's n."""
        return self._n

    @property
    def address(self) -> str:
        """Where receivers ask."""
        return self._server.address

    def publish(self, bits: Bits) -> None:
        """Make `bits` the next version; on an error everything is as before."""
        self._n = self._publisher.publish(bits).version.n

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that receivers were sent, and what whole weights would have been."""
        sums = self._log.statistics()
        return sums.sent_bytes, sums.dense_bytes

    def close(self) -> None:
        """Take no more versions, and break off who is being served."""
        self._log.close()
        self._server.close()
