"""What tests of the build share: `setup.py` as a module, the toolkit it finds, and copies."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Final

import ninja
import pytest

from tests.load import load

ROOT: Final = Path(__file__).resolve().parents[2]


def load_setup() -> ModuleType:
    """Return `setup.py` as a module; it builds only when it is run."""
    return load(ROOT / "setup.py")


SETUP: Final = load_setup()
BUILD: Final = SETUP.BUILD.relative_to(ROOT)
NVCC: Final[str | None] = SETUP.find_nvcc()
needs_nvcc: Final = pytest.mark.skipif(
    NVCC is None, reason="there is no nvcc here: no device code to look at"
)


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        check=False,
    )


def toolkit_include() -> Path | None:
    """Return the folder of the toolkit's headers, which nvcc knows best."""
    if NVCC is None:
        return None
    done = run(NVCC, "--dryrun", "-E", "-x", "cu", os.devnull, cwd=ROOT)
    found = re.findall(r'"?-I"?\s*([^"\s]+)', done.stdout + done.stderr)
    return next((Path(path) for path in found if (Path(path) / "cudaTypedefs.h").exists()), None)


def copy_project(source: Path, into: Path) -> Path:
    """Copy what a build reads and what it made so far: the copy is as up to date as the original.

    So a test may change the copy, and pays for that change only.
    """
    into.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(source / name, into)
    for name in ("csrc", "kernels", "rose", str(SETUP.LABORATORY), str(BUILD)):
        if (source / name).exists():
            ignored = shutil.ignore_patterns("__pycache__", "lock")
            shutil.copytree(source / name, into / name, ignore=ignored)
    return into


def build(project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build the extensions of a copy in place."""
    return run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=project, **environment)


def steps(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Return what ninja did or would do: `C++ csrc/x.cpp`, `CUDA kernels/x.cu`, `link _core.so`."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^\[\d+/\d+\] (.*)$", done.stdout, re.MULTILINE)
    return {step.replace("../", "") for step in found}


def would_do(project: Path, mode: str = "") -> set[str]:
    """Return the steps that the core still needs in a build of this mode."""
    target = SETUP.target_of(SETUP.CORE, mode)
    ninja_program = Path(ninja.BIN_DIR, "ninja")
    return steps(run(ninja_program, "-n", "-C", project / BUILD, target, cwd=project))


def unit_of(project: Path, source: str) -> str:
    """Return the translation unit that includes `source`."""
    sources = sorted(str(path.relative_to(project)) for path in project.glob("csrc/**/*.cpp"))
    (unit,) = (unit for unit, held in SETUP.units_of(sources).items() if source in held)
    return unit


def kernels(project: Path) -> list[str]:
    return sorted(path.stem for path in project.glob("kernels/*.cu"))


def extension(project: Path) -> Path:
    """Return the extension that was built in place for this Python."""
    return project / "rose" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
