"""The kernels, compiled for this CPU once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels import interpreter
from tests.kernels.on_cpu import PLAIN, KernelsOnCpu, Order, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("kernels") / "plain.so", PLAIN)


@pytest.fixture(params=[(Order.BACKWARD, 0), (Order.SHUFFLED, 4)], ids=["backward", "shuffled"])
def kernels(request: pytest.FixtureRequest, library: Path) -> KernelsOnCpu:
    """Run in one order of threads; arrays of elements are aligned to 16 bytes in the first only."""
    order, shift = request.param
    return KernelsOnCpu(library, order=order, shift=shift)


@pytest.fixture(scope="session")
def child() -> Iterator[interpreter.Child]:
    """Return the process in which Triton interprets its kernels."""
    with interpreter.child(interpret=True) as running:
        yield running
