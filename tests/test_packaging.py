"""What leaves the repository can be installed elsewhere, and says in one sentence why it cannot."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.building.project import BUILD
from tests.slo.conftest import write_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[1]
NO_COMPILER = "rose: no C++20 compiler: '{}' {} (install g++ >= 11 or set CXX)"


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    # No isolation: the build requirements are those of this environment, nothing is downloaded.
    command = ["-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT]
    done = run(sys.executable, *command, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    (root,) = folder.iterdir()
    return root


@pytest.fixture(scope="module")
def wheel(unpacked: Path) -> Path:
    """Return the wheel that `make wheel` builds of an sdist.

    It gets the objects of this build, as the sources of an sdist keep their times: to compile them
    once more takes minutes. A source or a header that the sdist lacks stops ninja all the same.
    """
    shutil.copytree(ROOT / BUILD, unpacked / BUILD)
    # `-o build`: this environment is not one that make set up for the sdist.
    done = run("make", "-o", "build", "wheel", f"VENV={sys.prefix}", cwd=unpacked)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (unpacked / "dist").iterdir()
    return made


def in_repository(*patterns: str) -> set[str]:
    found = {path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern)}
    return {str(path) for path in found}


def test_sdist_holds_all_it_takes_to_build_and_test(unpacked: Path) -> None:
    held = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    wanted = in_repository("csrc/**/*.cpp", "csrc/**/*.h", "bench/*.py", "*.md", ".ci/run")
    wanted |= in_repository("rose/**/*.py", "rose/**/*.pyi", "requirements/*.*")
    wanted |= in_repository("rose/**/*.json", "rose/**/*.proto")
    wanted |= in_repository(*(f"bench/lab/**/*.{kind}" for kind in "py pyi j2 toml cpp h".split()))
    wanted |= in_repository("kernels/*.cu", "kernels/*.cuh", "kernels/*.h")
    wanted |= in_repository(*(f"tests/**/*.{kind}" for kind in "py c cpp h txt json".split()))
    wanted |= {"setup.py", "pyproject.toml", "Makefile", "LICENSE", "rose/py.typed"}
    assert not wanted - held
    assert not [name for name in held if name.endswith((".so", ".pyc", ".o"))]


def test_wheel_is_small_and_holds_the_core_and_its_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert wheel.stat().st_size < 13 << 18  # ADR 0028
    assert len([name for name in names if name.startswith("rose/_core.") and ".so" in name]) == 1
    assert {"rose/_core.pyi", "rose/py.typed"} <= set(names)
    assert in_repository("rose/**/*.json") <= set(names)
    protos = in_repository("rose/**/*.proto")
    assert protos
    for proto in protos:
        made = proto.removesuffix(".proto") + "_pb2"
        assert {proto, f"{made}.py", f"{made}.pyi"} <= set(names)
    assert packages_of(names) == {"rose"}


def packages_of(names: list[str]) -> set[str]:
    """Return the top folders of a wheel without its metadata."""
    tops = {name.split("/")[0] for name in names}
    return {top for top in tops if not top.endswith(".dist-info")}


def test_wheel_of_the_laboratory_holds_its_own_package_only(wheel: Path, unpacked: Path) -> None:
    # After `wheel`, the folder of the sdist has the objects of this build.
    laboratory = unpacked / "bench" / "lab"
    command = ["wheel", "--no-deps", "--no-build-isolation", "-w", unpacked / "made", laboratory]
    done = run(sys.executable, "-m", "pip", *command, cwd=unpacked)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (unpacked / "made").iterdir()
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
    assert packages_of(names) == {"rose_lab"}
    assert [name.split(".")[0] for name in names if ".so" in name] == ["rose_lab/_sim"]
    templates = {str(path.relative_to(laboratory)) for path in laboratory.glob("rose_lab/**/*.j2")}
    assert {"rose_lab/_sim.pyi", "rose_lab/py.typed", *templates} <= set(names)
    assert any(name.endswith("/entry_points.txt") for name in names)


def base_requirements(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().partition("\n\n")[0].splitlines()
    field = "Requires-Dist: "
    found = [Requirement(line.removeprefix(field)) for line in lines if line.startswith(field)]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def test_installing_rose_never_touches_torch(wheel: Path) -> None:
    names = {requirement.name for requirement in closure(base_requirements(wheel))}
    assert not names & {"torch", "transformers", "triton"}
    assert names >= {"numpy", "click", "rich"}


def closure(requirements: list[Requirement]) -> list[Requirement]:
    """Return requirements and all that they require, without extras."""
    found: dict[str, Requirement] = {}
    waiting = list(requirements)
    while waiting:
        one = waiting.pop()
        if one.name in found or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        found[one.name] = one
        waiting += [Requirement(line) for line in distribution(one.name).requires or []]
    return list(found.values())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests need no Triton here")
def test_triton_brings_no_cuda_package() -> None:
    names = {requirement.name for requirement in closure([Requirement("triton")])}
    assert names == {"triton"}


def link_into(site: Path, installed: Distribution) -> None:
    """Make an installed distribution visible in `site`: the network stays out of this test."""
    for top in {file.parts[0] for file in installed.files or [] if file.parts[0] != ".."}:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(installed.locate_file(top))))


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin/ of an empty environment that has rose and its base requirements only."""
    root = tmp_path_factory.mktemp("empty")
    venv.create(root, with_pip=False)
    python = root / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", wheel]
    done = run(sys.executable, "-m", "pip", "--python", python, *install, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    where = "import sysconfig; print(sysconfig.get_path('platlib'))"
    site = Path(run(python, "-c", where, cwd=root).stdout.strip())
    for requirement in closure(base_requirements(wheel)):
        link_into(site, distribution(requirement.name))
    return root / "bin"


def test_sdist_installs_in_an_empty_environment(elsewhere: Path, tmp_path: Path) -> None:
    code = "import rose, rose._core; print(rose.__version__, rose._core.__file__)"
    done = run(elsewhere / "python", "-I", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    version, path = done.stdout.split()
    assert version == distribution("rose-rl").version
    assert Path(path).is_relative_to(elsewhere.parent)


def test_command_line_needs_the_base_requirements_only(elsewhere: Path, tmp_path: Path) -> None:
    done = run(elsewhere / "rose", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def glibc_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_wheel_runs_on_the_glibc_of_its_name(wheel: Path, tmp_path: Path) -> None:
    (tag,) = re.findall(r"-manylinux_(\d+)_(\d+)_", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".so" in name)
        library = archive.extract(name, tmp_path)
    wanted = re.findall(r"@GLIBC_([\d.]+)", run("readelf", "-sW", library, cwd=tmp_path).stdout)
    assert wanted
    assert max(map(glibc_of, wanted)) <= tuple(map(int, tag))


def test_commands_need_the_base_requirements_only(elsewhere: Path, tmp_path: Path) -> None:
    write_log(tmp_path / "log")
    for command in ("doctor", "verify log"):
        done = run(elsewhere / "rose", *command.split(), cwd=tmp_path)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def test_a_command_of_the_laboratory_names_the_package_that_it_needs(
    elsewhere: Path, tmp_path: Path
) -> None:
    done = run(elsewhere / "rose", "demo", cwd=tmp_path)
    said = "rose: rose demo is part of the laboratory: install rose-lab\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize(
    ("command", "extra"),
    [("receive --help", "wire"), ("serve --help", "serve"), ("top", "wire")],
)
def test_a_command_names_the_extra_that_it_needs(
    elsewhere: Path, tmp_path: Path, command: str, extra: str
) -> None:
    done = run(elsewhere / "rose", *command.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(f" is not installed; install rose-rl[{extra}]\n")
    assert done.stderr.count("\n") == 1


def test_sdist_installs_with_an_isolated_build(sdist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    done = run(python, "-m", "pip", "install", sdist, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run(python, "-I", "-c", "import rose._core", cwd=tmp_path).returncode == 0


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def build_extension(unpacked: Path, cxx: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "setup.py", "-q", "build_ext", cwd=unpacked, CXX=cxx)


def test_missing_compiler_is_one_sentence(unpacked: Path) -> None:
    done = build_extension(unpacked, "/nonexistent/g++")
    assert done.returncode != 0
    assert last_line(done.stderr) == NO_COMPILER.format("/nonexistent/g++", "not found")
    assert "Traceback" not in done.stderr


def test_old_compiler_is_one_sentence(unpacked: Path, tmp_path: Path) -> None:
    old = tmp_path / "g++"
    old.write_text("#!/bin/sh\necho 'unrecognized option -std=c++20' >&2\nexit 1\n")
    old.chmod(0o755)
    done = build_extension(unpacked, str(old))
    assert done.returncode != 0
    assert last_line(done.stderr) == NO_COMPILER.format(old, "does not compile C++20")
    assert "Traceback" not in done.stderr


def test_pip_shows_the_sentence(unpacked: Path, tmp_path: Path) -> None:
    command = ["wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, unpacked]
    done = run(sys.executable, "-m", "pip", *command, cwd=tmp_path, CXX="/nonexistent/g++")
    assert done.returncode != 0
    assert NO_COMPILER.format("/nonexistent/g++", "not found") in done.stdout + done.stderr


def test_core_of_a_wheel_names_no_function(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".so" in name)
        library = archive.extract(name, tmp_path)
    assert ".symtab" not in run("readelf", "-SW", library, cwd=tmp_path).stdout


def test_core_has_no_executable_stack_and_no_driver(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".so" in name)
        library = archive.extract(name, tmp_path)
    headers = run("readelf", "-lW", "-d", library, cwd=tmp_path).stdout
    (stack,) = (line for line in headers.splitlines() if "GNU_STACK" in line)
    assert " RW " in stack
    assert "libcuda" not in headers
    assert "libtorch" not in headers


@pytest.mark.parametrize(
    ("fails_on", "says"),
    [("version_info", "' must be Python >= 3.10: set PYTHON="), ("venv", "has no venv module")],
)
def test_make_says_what_python_lacks(tmp_path: Path, fails_on: str, says: str) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *{fails_on}*) exit 1;; esac\nexit 0\n')
    python.chmod(0o755)
    place = tmp_path / "environment"
    done = run("make", "install", f"PYTHON={python}", f"VENV={place}", cwd=ROOT)
    assert done.returncode == 2
    assert says in done.stderr
    assert not place.exists()
