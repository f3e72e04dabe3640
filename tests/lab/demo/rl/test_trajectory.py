"""A trajectory that contradicts itself is refused before anything is learned from it."""

from dataclasses import replace

import pytest

from rose.errors import InvalidArgument
from rose_lab.demo.rl.trajectory import NOT_GENERATED, Trajectory

GOOD = Trajectory(
    number=4,
    group=1,
    seed=9,
    environment="grid",
    tokens=(2, 65, 3, 78, 1),
    is_generated=(False, False, False, True, True),
    logprobs=(0.0, 0.0, 0.0, -1.5, -0.25),
    versions=(NOT_GENERATED, NOT_GENERATED, NOT_GENERATED, 7, 6),
    reward=1.0,
    turns=1,
)


def test_a_trajectory_knows_its_oldest_version_and_what_was_said() -> None:
    assert GOOD.version_min == 6
    assert GOOD.generated_tokens == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": (2, 65, 3, 78)},
        {"is_generated": (False,) * 5},
        {"is_generated": (True, False, False, True, True)},
        {"logprobs": (0.0, 0.0, 0.0, 0.5, -0.25)},
        {"logprobs": (0.0, 0.0, 0.0, float("-inf"), -0.25)},
        {"logprobs": (0.0, 0.0, -1.0, -1.5, -0.25)},
        {"versions": (NOT_GENERATED,) * 4 + (7,)},
        {"versions": (NOT_GENERATED, NOT_GENERATED, 3, 7, 6)},
        {"tokens": (2, 65, 3, -78, 1)},
        {"reward": float("nan")},
        {"turns": 0},
    ],
)
def test_a_contradiction_is_refused_by_number(wrong) -> None:
    with pytest.raises(InvalidArgument, match="trajectory 4"):
        replace(GOOD, **wrong)
