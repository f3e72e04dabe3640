"""ROSE_CUDA says whether the extension holds device code; everything else is the same."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.building.project import (
    BUILD,
    NVCC,
    SETUP,
    build,
    extension,
    kernels,
    needs_nvcc,
    run,
    steps,
)
from tests.load import load

pytestmark = pytest.mark.timeout(600)

NOWHERE = "/nonexistent/nvcc"
NOT_FOUND = "rose: ROSE_CUDA=on but nvcc was not found: "
MEND = " (install the CUDA toolkit >= 12.8, set ROSE_NVCC, or set ROSE_CUDA=off)"
VARIABLES = ("ROSE_CUDA", "ROSE_NVCC", "CUDA_HOME", "CUDA_PATH")


def embedded(project: Path) -> set[str]:
    """Return the names of the fat binaries in the extension."""
    symbols = run("readelf", "-sW", extension(project), cwd=project).stdout
    return set(re.findall(r" rose_fatbin_(\w+?)(?:_bytes)?$", symbols, re.MULTILINE))


def names(project: Path) -> list[str]:
    """Return the names that `rose._core` has in a process of its own."""
    code = "import json, rose._core as core; print(json.dumps([core.__file__, *dir(core)]))"
    done = run(sys.executable, "-c", code, cwd=project, PYTHONPATH=str(project))
    assert done.returncode == 0, done.stderr
    path, *found = json.loads(done.stdout)
    assert path == str(extension(project))
    return found


def compiled(project: Path) -> list[str]:
    """Return the C++ that the build compiles."""
    text = (project / BUILD / "build.ninja").read_text()
    return re.findall(r"^build \S+: cxx (\S+)$", text, re.MULTILINE)


@needs_nvcc
def test_turning_it_off_drops_the_kernels_and_nothing_else(project: Path) -> None:
    assert embedded(project) == set(kernels(project)) != set()
    before = names(project), compiled(project)
    # No clean in between: ninja sees that the table says something else.
    done = build(project, ROSE_CUDA="off")
    assert steps(done) == {"C++ fatbin_table.cpp", "link _core.so"}
    assert "rose: built without device code" in done.stdout
    assert embedded(project) == set()
    assert (names(project), compiled(project)) == before
    done = build(project, ROSE_CUDA="auto")
    assert steps(done) == {"C++ fatbin_table.cpp", "link _core.so"}
    assert embedded(project) == set(kernels(project))


def test_without_nvcc_auto_is_off(project: Path) -> None:
    done = build(project, ROSE_CUDA="off")
    assert done.returncode == 0, done.stdout + done.stderr
    assert embedded(project) == set()
    done = build(project, ROSE_CUDA="", ROSE_NVCC=NOWHERE)
    assert steps(done) == set()
    assert names(project)
    expected = {"fatbin_table.cpp"}
    here = load(project / "setup.py")  # the copy has sources that the original lacks
    for sources in map(here.sources_of, (here.CORE, here.SIMULATOR)):
        expected |= {*(f"../../{source}" for source in sources), *here.units_of(sources)}
    assert set(compiled(project)) == expected


def refusal(project: Path, **environment: str) -> str:
    """Return the one sentence a build stops with."""
    done = build(project, **environment)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_on_without_nvcc_stops(built: Path) -> None:
    said = refusal(built, ROSE_CUDA="on", ROSE_NVCC=NOWHERE)
    assert said == f"{NOT_FOUND}ROSE_NVCC='{NOWHERE}' is no program{MEND}"


@pytest.mark.parametrize("value", ["yes", "1", "ON", " off"])
def test_any_other_value_is_refused(built: Path, value: str) -> None:
    said = refusal(built, ROSE_CUDA=value)
    assert said == f"rose: ROSE_CUDA='{value}' means nothing (set it to auto, on or off)"


def program(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("mode", ["auto", "on"])
@pytest.mark.parametrize(
    "says",
    [
        "nvcc fatal   : Unsupported gpu architecture 'compute_100'",
        "nvcc fatal   : Value 'c++20' is not defined for option 'std'",
    ],
)
def test_an_old_nvcc_is_one_sentence(built: Path, tmp_path: Path, mode: str, says: str) -> None:
    old = program(tmp_path / "old" / "nvcc", f'echo "{says}" >&2\nexit 1')
    said = refusal(built, ROSE_CUDA=mode, ROSE_NVCC=str(old))
    mend = "(install the CUDA toolkit >= 12.8, or set ROSE_CUDA=off)"
    assert said == f"rose: '{old}' cannot compile the kernels: {says} {mend}"


@pytest.mark.parametrize(("major", "mode"), [(12, "speed"), (13, "size"), (14, "size")])
def test_old_drivers_can_read_what_nvcc_12_compresses(
    alone: Path, monkeypatch: pytest.MonkeyPatch, major: int, mode: str
) -> None:
    said = f"#$ gcc -D__CUDACC_VER_MAJOR__={major} -D__CUDACC_VER_MINOR__=12"
    nvcc = program(alone / "nvcc", f"echo '{said}' >&2")
    monkeypatch.setenv("ROSE_NVCC", str(nvcc))
    assert SETUP.device_compiler() == [str(nvcc), f"--compress-mode={mode}"]


@needs_nvcc
def test_the_probe_asks_what_the_build_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES[:2]:
        monkeypatch.delenv(name, raising=False)
    assert SETUP.device_compiler()[0] == NVCC
    monkeypatch.setattr(SETUP, "DEVICE", SETUP.DEVICE + " -gencode arch=compute_30,code=sm_30")
    with pytest.raises(SystemExit, match="Unsupported gpu architecture 'compute_30'"):
        SETUP.device_compiler()


def test_rose_cuda_arch_narrows_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSE_CUDA_ARCH", "90, 100")
    codes = SETUP.device_codes()
    assert codes[::2] == ["-gencode"] * 3
    assert codes[1::2] == [
        "arch=compute_90,code=sm_90",
        "arch=compute_100,code=sm_100",
        "arch=compute_90,code=compute_90",
    ]


def test_an_architecture_that_is_no_number_is_one_sentence(built: Path) -> None:
    said = refusal(built, ROSE_CUDA="off", ROSE_CUDA_ARCH="hopper")
    assert said == "rose: ROSE_CUDA_ARCH='hopper' must list architectures, as '80,90' does"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder, in a process that knows no toolkit."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(SETUP, "DEFAULT_CUDA", str(tmp_path / "default"))
    return tmp_path


def test_nvcc_is_searched_in_order(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SETUP.find_nvcc() is None
    assert SETUP.device_compiler() is None
    # From the last place to the first: each wins over all that were there before.
    default = program(alone / "default" / "bin" / "nvcc")
    assert SETUP.find_nvcc() == str(default)
    on_path = program(alone / "path" / "nvcc")
    assert SETUP.find_nvcc() == str(on_path)
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.setenv(variable, str(alone / variable))
        assert SETUP.find_nvcc() != str(alone / variable / "bin" / "nvcc")
        there = program(alone / variable / "bin" / "nvcc")
        assert SETUP.find_nvcc() == str(there)
    monkeypatch.setenv("ROSE_NVCC", str(program(alone / "mine")))
    assert SETUP.find_nvcc() == str(alone / "mine")
    monkeypatch.setenv("ROSE_NVCC", NOWHERE)
    assert SETUP.find_nvcc() is None


def test_on_says_where_it_looked(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSE_CUDA", "on")
    places = f"it is not in CUDA_HOME, CUDA_PATH, PATH or {alone / 'default'}"
    with pytest.raises(SystemExit) as stopped:
        SETUP.device_compiler()
    assert str(stopped.value) == NOT_FOUND + places + MEND


def test_off_asks_nobody(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(alone / "path" / "nvcc", "exit 1")
    monkeypatch.setenv("ROSE_CUDA", "off")
    assert SETUP.device_compiler() is None
