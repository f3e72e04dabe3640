"""A circle says at once what it could only wait for."""

from pathlib import Path

import pytest

from rose.clock import BootClock
from rose.demo.rl.circle import Circle
from rose.errors import InvalidArgument
from tests.demo.rl.circle_rig import settings


def test_a_folder_of_another_circle_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "trainer.checkpoint").touch()
    circle = Circle(settings(tmp_path), wait_s=lambda _n, _turn: 0.0, clock=BootClock())
    with pytest.raises(InvalidArgument, match="there already"):
        circle.start()
    circle.stop()
