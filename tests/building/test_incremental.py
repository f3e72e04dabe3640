"""A change rebuilds what it touches and nothing else."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.building.project import (
    BUILD,
    NVCC,
    SETUP,
    build,
    extension,
    needs_nvcc,
    run,
    steps,
    unit_of,
    would_do,
)
from tests.load import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DEVICE_STEPS = {"asm fatbins.S"} if NVCC else set()


def read(project: Path) -> dict[str, str]:
    """Return the text of every file that is compiled or included, by its path."""
    paths = (path for room in ("csrc", "kernels") for path in project.glob(f"{room}/**/*"))
    suffixes = {".cpp", ".cu", ".h", ".cuh"}
    return {
        str(path.relative_to(project)): path.read_text()
        for path in paths
        if path.suffix in suffixes
    }


def included(path: str, text: str, known: dict[str, str]) -> Iterator[str]:
    """Yield the files of the project that a file includes, as the compiler looks for them."""
    for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE):
        places = [os.path.normpath(Path(path).parent / name), name, f"csrc/{name}"]
        yield from [place for place in places if place in known][:1]


def users(project: Path, header: str) -> set[str]:
    """Return the steps that read `header`, directly or through other headers."""
    texts = read(project)
    found, waiting = {header}, [header]
    while waiting:
        one = waiting.pop()
        more = {path for path, text in texts.items() if one in included(path, text, texts)} - found
        found |= more
        waiting += more
    table = {"C++ fatbin_table.cpp"} if "csrc/driver/kernel_library.h" in found else set()
    units = {f"C++ {unit_of(project, path)}" for path in found if path.endswith(".cpp")}
    return units | {f"CUDA {path}" for path in found if path.endswith(".cu")} | table


def test_nothing_is_done_twice(built: Path) -> None:
    assert would_do(built) == set()


def test_the_laboratory_is_linked_from_the_same_objects_in_the_same_run(project: Path) -> None:
    folder = project / SETUP.LABORATORY / "rose_lab"
    (made,) = folder.glob("_sim.*.so")
    made.unlink()
    (project / "csrc/base/clock.cpp").touch()
    done = steps(build(project, ROSE_CUDA="on" if NVCC else "off"))
    assert done == {
        f"C++ {unit_of(project, 'csrc/base/clock.cpp')}",
        "link _core.so",
        "link _sim.so",
    }
    assert made.exists()


def test_a_copy_is_up_to_date(project: Path) -> None:
    # Every test here stands on this: what a copy does not change, it need not build.
    assert steps(build(project, ROSE_CUDA="on" if NVCC else "off")) == set()


def test_a_full_disk_keeps_the_old_extension_whole(project: Path) -> None:
    old = extension(project)
    old.unlink(missing_ok=True)
    assert steps(build(project, ROSE_CUDA="on" if NVCC else "off")) == set()
    size, inode = old.stat().st_size, old.stat().st_ino
    limit = f"ulimit -f {size // 2048}; exec {sys.executable} setup.py -q build_ext --inplace"
    done = run("sh", "-c", limit, cwd=project, ROSE_CUDA="on" if NVCC else "off")
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("rose: cannot write ")
    assert said.endswith(f"{old.relative_to(project)}: File too large")
    assert (old.stat().st_size, old.stat().st_ino) == (size, inode)
    assert list(project.rglob("*.part")) == []


def test_extension_of_another_mode_is_replaced_though_it_is_newer(project: Path) -> None:
    extension(project).write_bytes(b"made by ROSE_FAST=1")
    assert steps(build(project, ROSE_CUDA="on" if NVCC else "off")) == set()
    made = project / BUILD / SETUP.target_of(SETUP.CORE)
    assert extension(project).read_bytes() == made.read_bytes()


@pytest.mark.parametrize(
    "header",
    ["csrc/base/status.h", "csrc/driver/kernel_library.h", "kernels/planted_params.h"],
)
def test_a_header_rebuilds_what_includes_it(project: Path, header: str) -> None:
    expected = users(project, header)
    assert expected
    if NVCC is None:
        expected = {step for step in expected if not step.startswith("CUDA")}
    if any(step.startswith("CUDA") for step in expected):
        expected |= DEVICE_STEPS
    (project / header).touch()
    assert would_do(project) == expected | {"link _core.so"}


def test_each_source_is_in_one_unit(built: Path) -> None:
    here = load(built / "setup.py")  # the copy has sources that the original lacks
    sources = [here.sources_of(name) for name in (here.CORE, here.SIMULATOR)]
    units = here.units_of(sources[0]) | here.units_of(sources[1])
    held = sorted(source for unit in units.values() for source in unit)
    assert held == sorted({source for one in sources for source in one})
    assert {len({Path(source).parent for source in unit}) for unit in units.values()} == {1}
    written = {str(path.relative_to(built / BUILD)) for path in built.glob(f"{BUILD}/unity/*.cpp")}
    assert written == set(units)


def test_fast_builds_compile_the_source_that_changed(project: Path) -> None:
    one = "csrc/base/clock.cpp"
    (project / one).touch()  # The copy has the objects of earlier fast builds, if there were any.
    before = would_do(project, SETUP.FAST)
    assert f"C++ {one}" in before
    assert not [step for step in before if "unity/" in step]


@needs_nvcc
def test_a_shared_header_is_known_to_both_compilers(built: Path) -> None:
    assert users(built, "kernels/planted_params.h") == {
        f"C++ {unit_of(built, 'csrc/driver/planted.cpp')}",
        "CUDA kernels/planted_scale.cu",
        "CUDA kernels/planted_shift.cu",
    }


@needs_nvcc
def test_a_kernel_rebuilds_alone(project: Path) -> None:
    kernel = project / "kernels" / "planted_scale.cu"
    kernel.write_text(kernel.read_text().replace("2.0f", "3.0f"))
    done = build(project, ROSE_CUDA="on")
    assert steps(done) == {"CUDA kernels/planted_scale.cu", "asm fatbins.S", "link _core.so"}


@needs_nvcc
def test_a_new_kernel_compiles_no_other(project: Path) -> None:
    text = (project / "kernels" / "planted_scale.cu").read_text()
    (project / "kernels" / "planted_third.cu").write_text(text.replace("scale", "third"))
    assert steps(build(project, ROSE_CUDA="on")) == {
        "CUDA kernels/planted_third.cu",
        "C++ fatbin_table.cpp",
        "asm fatbins.S",
        "link _core.so",
    }


@needs_nvcc
def test_a_kernel_that_does_not_compile_says_where(project: Path) -> None:
    kernel = project / "kernels" / "planted_scale.cu"
    kernel.write_text(kernel.read_text().replace("params.count)", "params.length)"))
    done = build(project, ROSE_CUDA="on")
    assert done.returncode != 0
    assert "planted_scale.cu(4)" in done.stdout
    assert done.stderr.strip().splitlines()[-1].startswith("rose: ")
