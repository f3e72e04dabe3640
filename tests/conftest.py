"""What every test shares: the root, how Hypothesis searches, and who runs beside whom.

In a run of several processes (`pytest -n 2 --dist loadfile`, which `make test` is) a file is run by
one of them, and the files of `tests/alone.py` while the others wait.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

from tests.alone import is_alone, place, turn

ROOT: Final = Path(__file__).resolve().parents[1]

# No deadline, and none for finding examples: the machine is shared, and time is judged by
# benchmarks, as ratios.
hypothesis.settings.register_profile(
    "rose",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("rose")


def is_one_of_several(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_one_of_several(config):
        items.sort(key=lambda item: place(item.nodeid))


# Outside of everything else, so that no time of a test is spent with waiting for its turn.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not is_one_of_several(item.config):
        return (yield)
    with turn(ROOT / "build" / "turns", alone=is_alone(item.nodeid)):
        return (yield)


@pytest.fixture(scope="session")
def repo() -> Path:
    """Return the root of the repository."""
    return ROOT
