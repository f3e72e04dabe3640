"""What every test shares: the root of the repository, and how Hypothesis searches."""

from pathlib import Path

import hypothesis
import pytest

# No deadline: the machine is shared, and time is judged by benchmarks, as ratios.
hypothesis.settings.register_profile("rose", deadline=None, print_blob=True)
hypothesis.settings.load_profile("rose")


@pytest.fixture(scope="session")
def repo() -> Path:
    """Return the root of the repository."""
    return Path(__file__).resolve().parents[1]
