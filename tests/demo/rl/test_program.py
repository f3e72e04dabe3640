"""The trainer as a process: it is fed, killed and started again, and no number is used twice."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rose.clock import BootClock
from rose.demo.rl import program
from rose.demo.rl.messages import TrainerStatus
from rose.demo.rl.settings import TrainerOptions, TrainerSettings
from rose.demo.rl.trainer import PolicyTrainer
from rose.errors import InvalidArgument, Unavailable
from tests.demo.rl.micro import micro_model, trajectory
from tests.demo.rl.trainer_process import TrainerProcess, options
from tests.warm import Start

WAIT_S = 200.0  # bounds a hang; nothing is asserted about time


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    micro_model().save_pretrained(path)
    return path


class Trainer(TrainerProcess):
    """An incarnation whose versions go to a file (`tests/demo/rl/fake_program.py`)."""

    def __init__(self, warm: Start, options: TrainerOptions) -> None:
        log = Path(options.checkpoint).with_name("log")
        super().__init__(options, str(log), module="tests.demo.rl.fake_program", popen=warm)

    def status_when(self, is_so: Callable[[TrainerStatus], bool]) -> TrainerStatus:
        clock = BootClock()
        deadline_ns = clock.now_ns() + int(WAIT_S * 1e9)
        while not is_so(status := self.submit([]).status):
            assert clock.now_ns() < deadline_ns, status
            clock.sleep(0.02)
        return status


def group(number: int, version: int):
    """Return four trajectories with the same task; numbers follow from the group's."""
    return [
        trajectory(
            4 * number + place, [70 + place, 1], reward=place / 4, group=number, version=version
        )
        for place in range(4)
    ]


def versions(folder: Path) -> list[tuple[int, int, str]]:
    """Return (incarnation, n, SHA-256 of the bits) as they were published."""
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    return [(int(one[0]), int(one[1]), one[2]) for one in lines if one != ["closed"]]


@pytest.mark.timeout(600)
def test_a_killed_trainer_goes_on_as_a_higher_incarnation(
    warm: Start, model: Path, tmp_path: Path
) -> None:
    """Numbers to learn: after 4 versions, one checkpoint (before version 3) has 3 groups in it."""
    asked = options(model, tmp_path)
    first = Trainer(warm, asked)
    assert (first.ready.incarnation, first.ready.version) == (1, 0)
    for number in range(4):
        sent = group(number, version=number)
        assert len(first.submit(sent).submitted.accepted) == 4
        assert len(first.submit(sent).submitted.known) == 4
        status = first.status_when(lambda status, want=number + 1: status.version == want)
    assert (status.steps, status.consumed, status.durable) == (4, 16, 12)
    assert status.staleness == {0: 16}
    assert first.kill() == -signal.SIGKILL
    with pytest.raises(Unavailable):
        first.submit(group(9, version=0))

    second = Trainer(warm, asked)
    assert second.ready.incarnation == 2
    assert second.ready.version == 5  # 4 was used, and would have been the last before a checkpoint
    before = second.submit([]).status
    assert (before.steps, before.consumed, before.durable) == (3, 12, 12)
    again = [one for number in range(4) for one in group(number, version=number)]
    answer = second.submit(again).submitted
    # What the checkpoint has is not learned twice; what was learned after it was lost with it.
    assert answer.known == tuple(range(12))
    assert answer.accepted == tuple(range(12, 16))
    status = second.status_when(lambda status: status.version == 6)
    assert (status.steps, status.consumed) == (4, 16)

    os.kill(second.pid, signal.SIGTERM)
    assert second.wait() == 0
    log = versions(tmp_path)
    assert [(one[0], one[1]) for one in log] == [*((1, n) for n in range(5)), (2, 5), (2, 6)]
    shas = {(one[0], one[1]): one[2] for one in log}
    assert shas[2, 5] == shas[1, 3]  # the checkpoint's weights, bit for bit
    assert shas[2, 6] == shas[1, 4]  # the same lesson again: the moments came back too

    third = Trainer(warm, replace(asked, first_version=40))
    assert (third.ready.incarnation, third.ready.version) == (3, 40)
    assert third.submit([]).status.durable == 16  # SIGTERM saved
    assert third.close() == 0  # as does the end of its input
    assert (tmp_path / "log").read_text().endswith("closed\n")


def test_a_trainer_that_cannot_begin_says_why_and_ends(
    warm: Start, model: Path, tmp_path: Path, capfd
) -> None:
    (tmp_path / "checkpoint").write_bytes(b"something else")
    with pytest.raises(Unavailable, match="ended before it was ready"):
        Trainer(warm, options(model, tmp_path))
    assert "is not a checkpoint of rose" in capfd.readouterr().err
    assert (tmp_path / "checkpoint").read_bytes() == b"something else"


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    asked = options(tmp_path, tmp_path)
    trainer = PolicyTrainer(micro_model(), TrainerSettings())
    start = program._begin(trainer, replace(asked, first_version=7))
    assert (start.progress.incarnation, start.first_version) == (1, 7)
    again = program._begin(trainer, asked)
    assert again.progress.incarnation == 2
    assert again.first_version == start.progress.next_version > 7
    with pytest.raises(InvalidArgument, match="of run 'test', not 'other'"):
        program._begin(trainer, replace(asked, run="other"))
