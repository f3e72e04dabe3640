"""What tests of the demo share: a place where its programs are started quickly."""

import functools
from collections.abc import Iterator

import pytest

from tests.warm import Nursery, Start, WarmPopen


@pytest.fixture(scope="session")
def warm() -> Iterator[Start]:
    """Return what starts `python -m MODULE` without importing torch anew."""
    with Nursery() as nursery:
        yield functools.partial(WarmPopen, nursery)
