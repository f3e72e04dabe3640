"""No two threads of a kernel race, and each barrier prevents a race."""

from pathlib import Path

import pytest

from tests.kernels import races


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return races.build(tmp_path_factory.mktemp("races") / "races")


def test_kernels_have_no_race(program: Path) -> None:
    # Shows that the checker sees a race.
    a_barrier = min(one for one in races.barriers() if one.startswith("topk_pack.cu"))
    found = races.run(program, [a_barrier])
    assert found.races == 0, found.reports
    assert found.reached == races.barriers()
    assert found.found == {a_barrier}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_barrier_prevents_a_race(program: Path) -> None:
    found = races.run(program, races.barriers())
    assert found.missed == frozenset()
    assert found.found == races.barriers()
