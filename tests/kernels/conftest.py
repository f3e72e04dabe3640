"""The CUDA kernels compiled for this CPU, and the process in which Triton interprets its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels import interpreter
from tests.kernels.on_cpu import PLAIN, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("kernels") / "plain.so", PLAIN)


@pytest.fixture(scope="session")
def child() -> Iterator[interpreter.Child]:
    """Return the process in which Triton interprets its kernels."""
    with interpreter.child(interpret=True) as running:
        yield running
