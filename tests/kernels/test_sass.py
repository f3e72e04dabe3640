"""Machine code costs no more than the committed figures, and computes what the reference does."""

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.kernels import sass_figures
from tests.kernels.sass import needs_sass, nvcc_version
from tests.kernels.sass_figures import BLOCK, KERNELS, UP, Step

pytestmark = needs_sass


@pytest.fixture(scope="module")
def step() -> Step:
    return Step.draw(BLOCK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sass")


@pytest.mark.parametrize("kernel", [name for _, name, _ in KERNELS])
def test_kernel_costs_no_more_than_committed(kernel: str, folder: Path, step: Step) -> None:
    found = asdict(sass_figures.measure(kernel, folder, step))
    committed = sass_figures.committed()
    if committed["nvcc"] != nvcc_version():
        pytest.skip(f"the figures are of nvcc {committed['nvcc']}, this is {nvcc_version()}")
    worse = {
        name: (value, committed[kernel][name])
        for name, value in found.items()
        if (value < committed[kernel][name] if name in UP else value > committed[kernel][name])
    }
    assert not worse, "worse than committed; python -m tests.kernels.sass_figures writes anew"
