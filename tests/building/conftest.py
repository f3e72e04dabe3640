"""One build with planted kernels, and copies of it to change."""

from pathlib import Path

import pytest

from tests.building.project import NVCC, ROOT, build, copy_project

# Two kernels and a C++ file share a header, as real ones share the structure of their parameters.
PLANTED = {
    "kernels/planted_params.h": """#pragma once
struct PlantedParams {
  float* values;
  unsigned count;
};
""",
    "kernels/planted_scale.cu": """#include "kernels/planted_params.h"
extern "C" __global__ __launch_bounds__(256) void planted_scale_kernel(PlantedParams params) {
  const unsigned at = blockIdx.x * 256 + threadIdx.x;
  if (at < params.count) params.values[at] *= 2.0f;
}
""",
    "kernels/planted_shift.cu": """#include "kernels/planted_params.h"
extern "C" __global__ __launch_bounds__(256) void planted_shift_kernel(PlantedParams params) {
  const unsigned at = blockIdx.x * 256 + threadIdx.x;
  if (at < params.count) params.values[at] += 1.0f;
}
""",
    "csrc/driver/planted.cpp": """#include "kernels/planted_params.h"
static_assert(sizeof(PlantedParams) == 16);
""",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of a release build into the slow tier."""
    for item in items:
        if "built" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with planted kernels, built with nvcc where there is one.

    Nobody changes it: take `project` for that.
    """
    project = copy_project(ROOT, tmp_path_factory.mktemp("built") / "project")
    (project / "kernels").mkdir(exist_ok=True)
    for name, text in PLANTED.items():
        (project / name).write_text(text)
    done = build(project, ROSE_CUDA="on" if NVCC else "off")
    assert done.returncode == 0, done.stdout + done.stderr
    return project


@pytest.fixture
def project(built: Path, tmp_path: Path) -> Path:
    return copy_project(built, tmp_path / "project")
