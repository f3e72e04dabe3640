"""A checkpoint is whole or refused; what goes on from it goes on bit for bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, Unavailable
from rose_lab.demo.rl import checkpoint as checkpoint_module
from rose_lab.demo.rl.checkpoint import TrainingProgress, load_checkpoint, save_checkpoint
from rose_lab.demo.rl.settings import TrainerSettings
from rose_lab.demo.rl.trainer import PolicyTrainer, TrainerState
from tests.lab.demo.rl.micro import micro_model, trajectory

PROGRESS = TrainingProgress(3, 17, learned=frozenset({0, 1, 9}), dropped_stale=2)


def small(seed: int = 0, count: int = 5) -> TrainerState:
    rows = np.random.default_rng(seed).normal(size=(3, count)).astype(np.float32)
    return TrainerState(7, *rows)


def assert_equal(one: TrainerState, other: TrainerState) -> None:
    assert one.steps == other.steps
    for name in ("masters", "exp_avg", "exp_avg_sq"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


def test_a_restarted_trainer_continues_bit_for_bit(tmp_path: Path) -> None:
    told = [trajectory(n, [70 + n, 1], reward=float(n), group=0) for n in range(2)]
    settings = TrainerSettings(lr=1e-3)
    whole, first, second = (PolicyTrainer(micro_model(seed), settings) for seed in (0, 0, 1))
    path = tmp_path / "checkpoint"
    for trainer in (whole, first):
        for _ in range(2):
            trainer.step(told, published=0)
    save_checkpoint(path, first.state(), PROGRESS)
    found = load_checkpoint(path)
    assert found is not None
    second.restore(found[0])
    for _ in range(2):
        whole.step(told, published=0)
        second.step(told, published=0)
    assert_equal(second.state(), whole.state())
    assert np.array_equal(second.bits(), whole.bits())
    assert second.steps == whole.steps == 4


@given(st.integers(0, 1 << 32), st.integers(0, 40))
def test_what_was_saved_is_loaded(tmp_path_factory, seed: int, count: int) -> None:
    path = tmp_path_factory.mktemp("checkpoint") / "c"
    assert load_checkpoint(path) is None
    for progress in (PROGRESS, replace(PROGRESS, incarnation=4, learned=frozenset())):
        save_checkpoint(path, small(seed, count), progress)
        found = load_checkpoint(path)
        assert found is not None
        assert_equal(found[0], small(seed, count))
        assert found[1] == progress
    assert [one.name for one in path.parent.iterdir()] == ["c"]


def test_every_byte_is_guarded(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, small(), PROGRESS)
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(CorruptData, match="checkpoint"):
            load_checkpoint(path)
    for end in range(len(content)):
        path.write_bytes(content[:end])
        with pytest.raises(CorruptData, match="checkpoint"):
            load_checkpoint(path)
    path.write_bytes(content + b"x")
    with pytest.raises(CorruptData, match="damaged"):
        load_checkpoint(path)


def test_a_checkpoint_of_another_time_is_refused(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, small(), PROGRESS)
    monkeypatch.setattr(checkpoint_module, "FORMAT", 4)
    with pytest.raises(CorruptData, match="has format 3, this rose reads 4"):
        load_checkpoint(path)
    with pytest.raises(Unavailable, match="cannot be read"):
        load_checkpoint(tmp_path)


def test_the_next_save_deletes_the_unfinished_files_of_a_killed_trainer(tmp_path: Path) -> None:
    begun, other = tmp_path / ".c.0123456789abcdef", tmp_path / ".d.0123456789abcdef"
    for one in (begun, other):
        one.write_bytes(b"half")
    save_checkpoint(tmp_path / "c", small(), PROGRESS)
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "c"]
