"""What GPU tests share: they are skipped without a GPU, and leave a context that works.

torch, triton and cupy are imported by tests and fixtures, never when tests are collected.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bench.gpu.card import why_no_gpu


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skip every test of this folder where there is no GPU, for the one reason there is."""
    if (why := why_no_gpu()) is not None:
        pytest.skip(why)


@pytest.fixture(autouse=True)
def context_survives(gpu: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that broke the context, and stop: those after it could only fail too."""
    yield
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        request.session.shouldstop = f"the CUDA context is broken: {error}"
        pytest.fail(f"this test left a broken CUDA context: {error}", pytrace=False)


@pytest.fixture(scope="session")
def device(gpu: None) -> Any:
    """Return the first GPU, as rose opens it."""
    from rose._core import CudaDevice

    return CudaDevice.open(0)


@pytest.fixture(scope="session")
def lanes(gpu: None) -> Any:
    """Return rose's two streams on the context that torch uses."""
    from bench.gpu.lanes import Lanes

    return Lanes()


@pytest.fixture
def rng() -> np.random.Generator:
    """Return other numbers in each run; a test that fails shows its seed."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    return np.random.default_rng(seed)
