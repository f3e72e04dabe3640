"""A circle says at once what it could only wait for."""

from pathlib import Path

import pytest

from rose.clock import BootClock
from rose.demo.rl.circle import Circle
from rose.demo.rl.settings import LoopSettings, TrainerSettings
from rose.errors import InvalidArgument
from rose.scheduler import SchedulerSettings
from tests.demo.rl.circle_rig import settings


def test_a_trainer_never_waits_for_more_than_may_start(tmp_path: Path) -> None:
    scheduler = SchedulerSettings(max_staleness=0, batch_trajectories=10)
    with pytest.raises(InvalidArgument, match="lower its batch"):
        settings(tmp_path, scheduler=scheduler, trainer=TrainerSettings(batch=10))
    loop = LoopSettings(in_flight=2, group_size=4, turn_tokens_max=8, context_tokens_max=64)
    with pytest.raises(InvalidArgument, match="2 in flight: raise in_flight"):
        settings(tmp_path, loop=loop)


def test_a_folder_of_another_circle_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "trainer.checkpoint").touch()
    circle = Circle(settings(tmp_path), wait_s=lambda _n, _turn: 0.0, clock=BootClock())
    with pytest.raises(InvalidArgument, match="there already"):
        circle.start()
    circle.stop()
