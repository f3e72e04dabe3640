"""The trainer's loop: it learns, publishes, and never uses a version number twice."""

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rose.clock import Clock
from rose.transfer.manifest import Version
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.tiles import Row, Tiles
from rose.transfer.wire.server import serve
from rose.units import NS_PER_S
from rose_lab.demo.rl.checkpoint import TrainingProgress, save_checkpoint
from rose_lab.demo.rl.intake import Intake
from rose_lab.demo.rl.messages import Submitted, TrainerStatus
from rose_lab.demo.rl.settings import TrainerSettings
from rose_lab.demo.rl.trainer import Bits, PolicyTrainer
from rose_lab.demo.rl.trajectory import Trajectory

_TAKE_S: Final = 0.2  # time for an idle trainer to notice a stop
# This many unsaved trajectories force a checkpoint, even if no step changes the weights.
_UNSAVED_MAX: Final = 1024
_WAITING_BATCHES: Final = 64


def waiting_max(batch: int, group_size: int) -> int:
    """Return how many trajectories may wait at a trainer."""
    return _WAITING_BATCHES * max(batch, group_size)


def unsaved_max(batch: int, group_size: int) -> int:
    """Return how many accepted trajectories a trainer's death may lose.

    A trainer may learn from all waiting trajectories at once before it saves, while as many new
    trajectories arrive.
    """
    return _UNSAVED_MAX + 2 * waiting_max(batch, group_size)


class Training:
    """One incarnation of a trainer.

    One thread calls `run`; any thread may call `submit` and `status`. The checkpoint reserves
    version numbers before their use, so the incarnation after a kill starts above all used numbers.

    Args:
        trainer: trainer with the weights of the checkpoint.
        intake: queue that knows the checkpoint's learned trajectories.
        weights: published weights, which start with the trainer's bits.
        checkpoint: file to save to.
        progress: this incarnation's progress, already saved.
        settings: trainer settings.
        clock: time source.
    """

    def __init__(
        self,
        *,
        trainer: PolicyTrainer,
        intake: Intake,
        weights: "PublishedWeights",
        checkpoint: Path,
        progress: TrainingProgress,
        settings: TrainerSettings,
        clock: Clock,
    ) -> None:
        self._trainer = trainer
        self._intake = intake
        self._weights = weights
        self._path = checkpoint
        self._settings = settings
        self._clock = clock
        self._is_ahead = False  # whether the weights changed since the last publication
        # Newest version that a token may have: workers may use it before `publish` has returned.
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
        """Submit trajectories to learn from; see `Intake.submit`."""
        return self._intake.submit(trajectories, newest=self._newest)

    def run(self, stop: threading.Event) -> None:
        """Learn until `stop` is set, then finish the current step and save.

        Raises:
            RoseError: a publication or a checkpoint failed; the last checkpoint is intact.
        """
        while not stop.is_set():
            self.turn(timeout_s=_TAKE_S)
        self._save(next_version=self._progress.next_version)

    def turn(self, *, timeout_s: float) -> None:
        """Learn from a batch if one arrives in time, and publish changed weights if due."""
        if batch := self._intake.take(self._settings.batch, timeout_s=timeout_s):
            self._learn(batch)
        self._drop_stale()
        if len(self._learned) - self._durable >= _UNSAVED_MAX:
            self._save(next_version=self._progress.next_version)
        due_ns = self._published_ns + self._settings.publish_every_s * NS_PER_S
        if self._is_ahead and self._clock.now_ns() >= due_ns:
            self._publish()

    def status(self) -> TrainerStatus:
        """Return the current status."""
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
        progress = TrainingProgress(
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
    """Publishes the trainer's weights to receivers. Only the training thread calls `publish`.

    Args:
        bits: (n,) uint16 initial weights, copied.
        version: version of `bits`.
        address: loopback address to listen on.
        token: token that receivers must present.

    Raises:
        InvalidArgument: the address is not on loopback, or the token is missing.
        Unavailable: the port is taken.
    """

    def __init__(self, bits: Bits, *, version: Version, address: str, token: str | None) -> None:
        self._log = VersionLog()
        self._tiles = Tiles.of(len(bits))
        shadow = Contributor(Row(bits.copy(), self._tiles), self._tiles)
        self._publisher = Publisher([shadow], self._tiles, version, self._log)
        # Other threads read this number, and must not wait for a publication in progress.
        self._n = version.n
        self._server = serve(self._log, address, token=token)

    @property
    def version(self) -> int:
        """Number of the newest version."""
        return self._n

    @property
    def address(self) -> str:
        """Address for receivers."""
        return self._server.address

    def publish(self, bits: Bits) -> None:
        """Publish `bits` as the next version; an error changes nothing."""
        self._n = self._publisher.publish(Row(bits, self._tiles)).version.n

    def traffic(self) -> tuple[int, int]:
        """Return the bytes sent to receivers, and the bytes that whole weights would have taken."""
        sums = self._log.statistics()
        return sums.sent_bytes, sums.dense_bytes

    def close(self) -> None:
        """Stop publishing, and disconnect receivers."""
        self._log.close()
        self._server.close()
