"""A trainer's life on a clock of the test's own: what is learned is published, in time, once."""

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest

from rose.errors import Unavailable
from rose.units import NS_PER_S
from rose_lab.demo.rl import training as training_module
from rose_lab.demo.rl.checkpoint import TrainingProgress, load_checkpoint, save_checkpoint
from rose_lab.demo.rl.intake import Intake
from rose_lab.demo.rl.settings import TrainerSettings
from rose_lab.demo.rl.trainer import PolicyTrainer
from rose_lab.demo.rl.training import (
    Training,
    unsaved_max,
    waiting_max,
)
from tests.lab.demo.rl.micro import micro_model, trajectory


class HandClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += int(seconds * NS_PER_S)


class KeptWeights:
    """Keeps every version's bits; `refuse` makes the next publication fail."""

    def __init__(self, bits, first_version: int) -> None:
        self.version = first_version
        self.kept = {first_version: bits.copy()}
        self.refuse = False

    def publish(self, bits) -> None:
        if self.refuse:
            raise Unavailable("the log is closed")
        self.version += 1
        self.kept[self.version] = bits.copy()

    def traffic(self) -> tuple[int, int]:
        return 3, 7

    def close(self) -> None:
        pass


class Rig:
    """A training with its parts at hand; `turn` lets `run` go round once."""

    def __init__(self, path: Path, *, version: int = 0, **pace) -> None:
        self.clock = HandClock()
        self.path = path / "checkpoint"
        self.settings = TrainerSettings(
            **{"lr": 1e-3, "batch": 2, "publish_every_s": 3.0, "checkpoint_every": 2, **pace}
        )
        self.trainer = PolicyTrainer(micro_model(), self.settings)
        progress = TrainingProgress(1, version + 1 + self.settings.checkpoint_every)
        save_checkpoint(self.path, self.trainer.state(), progress)
        self.weights = KeptWeights(self.trainer.bits(), version)
        self.intake = Intake(group_size=2, vocabulary=128, waiting_max=40)
        self.training = Training(
            trainer=self.trainer,
            intake=self.intake,
            weights=self.weights,
            checkpoint=self.path,
            progress=progress,
            settings=self.settings,
            clock=self.clock,
        )
        self.sent = 0

    def send(self, *, version: int | None = None, rewards=(1.0, 0.0)) -> None:
        """Submit a group."""
        n = self.weights.version if version is None else version
        group = [
            trajectory(
                self.sent + place, [70 + place, 1], reward=reward, group=self.sent, version=n
            )
            for place, reward in enumerate(rewards)
        ]
        assert len(self.training.submit(group).accepted) == len(group)
        self.sent += len(group)

    def turn(self, *, after_s: float = 0.0) -> None:
        self.clock.sleep(after_s)
        self.training.turn(timeout_s=0.0)

    def saved(self) -> tuple[np.ndarray, TrainingProgress]:
        found = load_checkpoint(self.path)
        assert found is not None
        return found[0].masters, found[1]


def test_learned_weights_are_published_when_they_are_due(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.turn(after_s=10.0)
    assert rig.weights.version == 0  # nothing was learned yet
    rig.send()
    rig.turn()
    assert rig.weights.version == 1
    assert np.array_equal(rig.weights.kept[1], rig.trainer.bits())
    assert not np.array_equal(rig.weights.kept[1], rig.weights.kept[0])
    for after_s in (1.0, 1.9):  # too early: two steps share a version
        rig.send()
        rig.turn(after_s=after_s)
        assert rig.weights.version == 1
    rig.turn(after_s=0.1)
    assert rig.weights.version == 2
    assert np.array_equal(rig.weights.kept[2], rig.trainer.bits())
    rig.turn(after_s=10.0)
    assert rig.weights.version == 2
    assert rig.trainer.steps == 3


def test_a_batch_without_a_lesson_makes_no_version(tmp_path: Path) -> None:
    rig = Rig(tmp_path, publish_every_s=0.0)
    rig.send(rewards=(0.5, 0.5))
    rig.turn()
    status = rig.training.status()
    assert (status.version, status.steps, status.consumed, status.waiting) == (0, 0, 2, 0)


def test_a_number_is_reserved_on_the_disk_before_it_is_used(tmp_path: Path) -> None:
    rig = Rig(tmp_path, version=5, publish_every_s=0.0, checkpoint_every=2)
    reserved = []
    for _ in range(6):
        rig.send()
        rig.turn()
        masters, progress = rig.saved()
        assert rig.weights.version < progress.next_version
        reserved.append(progress.next_version)
        if rig.training.status().durable == rig.sent:  # saved just now: with all that was learned
            assert np.array_equal(masters, rig.trainer.state().masters)
    assert rig.weights.version == 11
    assert reserved == [8, 8, 10, 10, 12, 12]


def test_what_teaches_nothing_is_saved_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_module, "_UNSAVED_MAX", 2)
    rig = Rig(tmp_path, publish_every_s=1e6)
    rig.send()
    rig.turn()
    assert rig.weights.version == 0, "nothing was published, which would have saved it"
    assert rig.saved()[1].learned == {0, 1}


def test_a_refused_version_is_not_lost(tmp_path: Path) -> None:
    rig = Rig(tmp_path, publish_every_s=0.0)
    rig.weights.refuse = True
    rig.send()
    with pytest.raises(Unavailable, match="log is closed"):
        rig.turn()
    assert rig.training.status().versions == 0
    rig.weights.refuse = False
    rig.turn()
    assert np.array_equal(rig.weights.kept[1], rig.trainer.bits())


def test_the_status_counts_every_trajectory(tmp_path: Path) -> None:
    rig = Rig(tmp_path, version=20, publish_every_s=0.0, checkpoint_every=1)
    lonely = trajectory(90, [70], reward=0.0, group=90, version=3)  # too old, and never complete
    rig.training.submit([lonely])
    for changes in ({}, {"version": 18}, {"version": 11}):  # the last is too old, as a whole group
        rig.send(**changes)
        rig.turn()
    status = rig.training.status()
    assert (status.version, status.versions, status.steps) == (22, 2, 2)
    assert (status.consumed, status.waiting, status.dropped_stale) == (7, 0, 3)
    assert sum(status.staleness.values()) == 7
    assert {18, 3, 11} & set(status.staleness) <= {3, 11, 17, 18}
    assert (status.bytes_sent, status.dense_bytes) == (3, 7)


def test_a_running_trainer_learns_sent_trajectories_and_stops_on_request(tmp_path: Path) -> None:
    rig = Rig(tmp_path, publish_every_s=0.0)
    stop, published = threading.Event(), threading.Event()
    publish = rig.weights.publish
    rig.weights.publish = lambda bits: (publish(bits), published.set())
    thread = threading.Thread(target=rig.training.run, args=(stop,))
    thread.start()
    rig.send()
    assert published.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert rig.saved()[1].learned == {0, 1}


def test_tokens_of_a_version_that_is_not_there_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, version=4)
    for number, version in enumerate((5, 6)):
        early = trajectory(number, [70, 1], reward=0.0, version=version)
        told = f"trajectory {number} has tokens of version {version}, the newest version is 4"
        assert rig.training.submit([early]).refused == {number: told}
    rig.turn()
    assert rig.training.status().waiting == 0


def test_a_version_may_speak_while_it_is_published(tmp_path: Path) -> None:
    rig = Rig(tmp_path, publish_every_s=0.0)
    publish = rig.weights.publish

    def hold_and_publish(bits) -> None:
        if rig.weights.version == 0:
            rig.send(version=1)  # a receiver was faster than the log's own count
        publish(bits)

    rig.weights.publish = hold_and_publish
    rig.send()
    rig.turn()
    rig.turn()
    assert rig.trainer.steps == 2
    assert rig.training.status().staleness == {0: 4}


def test_no_more_dies_with_a_trainer_than_it_says(tmp_path: Path) -> None:
    """The worst: all but one unsaved, all room full, learned at once, and full again."""
    rig = Rig(tmp_path, batch=1, publish_every_s=1e9)
    room = waiting_max(1, 1)
    rig.training._intake = Intake(group_size=1, vocabulary=128, waiting_max=room)
    numbers = itertools.count()
    save, at_risk, taken = rig.training._save, [], 0

    def send(most: int) -> int:
        sent = (
            trajectory(number, [70, 1], reward=0.0) for number in itertools.islice(numbers, most)
        )
        return len(rig.training.submit(tuple(sent)).accepted)

    def look_and_save(**given) -> None:
        at_risk.append(taken + send(room + 1))
        save(**given)

    rig.training._save = look_and_save
    taken = send(room - 1)
    while not at_risk:
        rig.training.turn(timeout_s=0.0)
        taken += 0 if at_risk else send(room + 1)
    assert at_risk == [unsaved_max(1, 1) - 1]
