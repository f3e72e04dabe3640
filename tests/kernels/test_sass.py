"""Machine code costs no more than the committed figures, and equals the reference."""

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.kernels import sass_figures
from tests.kernels.sass import needs_sass, nvcc_version
from tests.kernels.sass_figures import (
    ARCHITECTURES,
    BLOCK,
    KERNELS,
    LAUNCHES,
    PACK,
    UP,
    Figures,
    StaticFigures,
    Step,
)

pytestmark = needs_sass


@pytest.fixture(scope="module")
def step() -> Step:
    return Step.draw(BLOCK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sass")


def assert_no_worse(found: dict[str, float], committed: dict[str, float]) -> None:
    worse = {
        name: (value, committed[name])
        for name, value in found.items()
        if (value < committed[name] if name in UP else value > committed[name])
    }
    assert not worse, "worse than committed; python -m tests.kernels.sass_figures writes anew"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_device_gets_worse_machine_code(architecture: int, folder: Path) -> None:
    committed = sass_figures.committed()
    static = {name: sass_figures.count(name, folder, architecture) for name in LAUNCHES}
    for found in static.values():
        assert found.spill_bytes == 0
        assert found.occupancy >= 0.5
    assert static[PACK].loads_in_flight >= 8
    if committed["nvcc"] == nvcc_version():
        for name, found in static.items():
            assert_no_worse(asdict(found), committed[f"sm_{architecture} {name}"])


def test_pack_keeps_its_bars_on_every_device() -> None:
    committed = sass_figures.committed()
    static = {
        architecture: StaticFigures(**committed[f"sm_{architecture} {PACK}"])
        for architecture in ARCHITECTURES
    }
    for load_loop, total in sass_figures.estimate(Figures(**committed[PACK]), static).values():
        assert load_loop <= 100
        assert total <= 200


@pytest.mark.parametrize("kernel", [name for _, name, _ in KERNELS])
def test_kernel_costs_no_more_than_committed(kernel: str, folder: Path, step: Step) -> None:
    found = asdict(sass_figures.measure(kernel, folder, step))
    committed = sass_figures.committed()
    if committed["nvcc"] != nvcc_version():
        pytest.skip(f"the figures are of nvcc {committed['nvcc']}, this is {nvcc_version()}")
    assert_no_worse(found, committed[kernel])
