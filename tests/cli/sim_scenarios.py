"""Scenario files that are simulated in a moment."""

from pathlib import Path
from typing import Final

import yaml

from tests.sim.scenario.files import content

ARMS: Final = ("rose", "resource-fixed", "least-loaded-sticky")


def write_scenario(path: Path, **fields: object) -> Path:
    """Write a small scenario of three arms and two seeds, with some fields changed."""
    small = {**content(), "arms": list(ARMS), "seeds": [1, 2], "horizon_s": 300, **fields}
    path.write_text(yaml.safe_dump(small), encoding="utf-8")
    return path
