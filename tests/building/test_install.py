"""`make install` ends in one sentence that names a log, and leaves nothing running."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import ninja
import pytest

from tests.building.project import ROOT
from tests.load import load

# In a mount namespace of its own: $1 becomes a disk of $2, and Python runs the program on stdin.
SMALL_DISK = """
mount -t tmpfs -o "size=$2" tmpfs "$1" && cd "$3" &&
cp -r --parents Makefile setup.py pyproject.toml bench/lab/pyproject.toml requirements "$1" &&
cd "$1" && exec "$4" -
"""
TWO_TRIES = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, "requirements")
import install
install.FREE_BYTES_MIN = 0  # the disk fills up later
environment = Path(".venv").absolute()
Path("build").mkdir()
for _ in range(2):
    try:
        install.install(environment)
    except install.Failure as failure:
        print(failure)
    subprocess.run(["mount", "-o", "remount,size=256m", "."], check=True)
subprocess.run([".venv/bin/pip", "--version"], check=True)
"""
MAKE = """
import os, subprocess
print(subprocess.run(["make", "install"]).returncode, os.path.exists(".venv"), flush=True)
"""

FULL = [sys.executable, "-c", "with open('/dev/full', 'w') as file: file.write('much')"]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module that keeps its logs in a folder of this test."""
    module = load(ROOT / "requirements" / "install.py")
    (tmp_path / module.LOGS).mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def reason(install: ModuleType, *phases: object) -> str:
    with pytest.raises(install.Failure) as failed:
        install.run(*phases)
    return str(failed.value)


def test_the_failure_of_one_stops_the_other(install: ModuleType, tmp_path: Path) -> None:
    started = time.monotonic()
    # A step of ninja is in a process group of its own.
    left = tmp_path / "left"
    rule = f"rule slow\n  command = sleep 3; touch {left}\nbuild {left}: slow\n"
    (tmp_path / "build.ninja").write_text(rule)
    core = install.Phase("C++ core", "core", [str(Path(ninja.BIN_DIR, "ninja"))])
    time.sleep(1)  # until the step has begun
    pip = ["sh", "-c", "echo 'ERROR: no network'; exit 1"]
    said = reason(install, core, install.Phase("packages", "packages", pip))
    assert said == "packages failed: no network (log: build/install-packages.log)"
    assert time.monotonic() - started < 3
    time.sleep(max(0.0, started + 4 - time.monotonic()))
    assert not left.exists()


def test_an_error_of_pip_is_the_reason(install: ModuleType) -> None:
    pip = ["sh", "-c", "echo 'ERROR: No matching distribution found for x'; exit 1"]
    said = reason(install, install.Phase("packages", "packages", pip))
    assert said == (
        "packages failed: No matching distribution found for x (log: build/install-packages.log)"
    )


def test_a_full_disk_is_named(install: ModuleType) -> None:
    said = reason(install, install.Phase("C++ core", "core", FULL))
    assert said == ("the disk is full: C++ core stopped (free 3 GiB) (log: build/install-core.log)")


def test_a_disk_with_little_room_is_refused_before_anything_is_made(
    install: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    monkeypatch.setattr(sys, "argv", ["install.py"])
    with pytest.raises(SystemExit) as stopped:
        install.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said == f"rose: set-up needs 3 GiB of disk, and 1.0 GiB are free at {tmp_path}\n"
    assert not (tmp_path / ".venv").exists()


def on_a_small_disk(folder: Path, size: str, program: str) -> subprocess.CompletedProcess[str]:
    own = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*own, "true"]).returncode:
        pytest.skip("this process may not mount a disk of its own")
    python = Path(sys.base_prefix, "bin", "python3")
    command = [*own, "sh", "-c", SMALL_DISK, "sh", folder, size, ROOT, python]
    ours = {"MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL"}  # of the make that runs the tests
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        [str(part) for part in command],
        input=program,
        env={**environment, "PIP_NO_INDEX": "1", "PYTHON": str(python)},
        text=True,
        capture_output=True,
    )


def test_make_refuses_a_small_disk(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, "8m", MAKE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 False"
    said = f"rose: set-up needs 3 GiB of disk, and 0.0 GiB are free at {tmp_path}"
    assert said in done.stderr.splitlines()


@pytest.mark.slow
def test_a_disk_that_fills_up_leaves_nothing_that_breaks_the_next_try(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, "8m", TWO_TRIES)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, second, version = done.stdout.splitlines()
    assert first.startswith("the disk is full: environment stopped ")
    # pip is whole: it gets as far as it does without a network.
    assert second.startswith("build tools failed: ")
    assert version.startswith("pip ")


def test_what_pip_was_stopped_in_is_installed_again(install: ModuleType, tmp_path: Path) -> None:
    site = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    half, whole = site / "half-1.dist-info", site / "whole-1.dist-info"
    for metadata in (half, whole):
        metadata.mkdir(parents=True)
        (metadata / "METADATA").touch()
    (whole / "INSTALLER").touch()
    install.forget_half_installed(tmp_path / ".venv")
    assert list(site.iterdir()) == [whole]


def test_without_a_compiler_the_core_says_so(install: ModuleType) -> None:
    command = [sys.executable, str(ROOT / "setup.py"), "-q", "build_ext"]
    core = install.Phase("C++ core", "core", command, CXX="/nonexistent/g++")
    said = reason(install, core)
    assert said.startswith("no C++20 compiler: '/nonexistent/g++' not found (")
    assert said.endswith(" (log: build/install-core.log)")


def test_a_long_phase_says_how_far_it_is(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "REPORT_S", 0.2)
    install.run(install.Phase("C++ core", "core", ["sh", "-c", "echo '[3/9] C++ x'; sleep 1"]))
    assert "rose: C++ core, 0 s: [3/9] C++ x\n" in capsys.readouterr().out


def makes(target: str, *variables: str) -> str:
    """Return the commands of a target, none of which is run."""
    command = ["make", "--dry-run", "--always-make", target, *variables]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_environment_of_vllm_needs_no_other(tmp_path: Path) -> None:
    made = makes("vllm-env", f"VENV={tmp_path}/none", f"VLLM_VENV={tmp_path}/vllm")
    assert "requirements/vllm_env.py" in made
    assert "requirements/install.py" not in made
    assert "ROSE_CUDA=off" in made


def test_the_core_of_an_installed_rose_serves_vllm_too(tmp_path: Path) -> None:
    (tmp_path / ".rose-installed").touch()
    made = makes("vllm-env", f"VENV={tmp_path}", f"VLLM_VENV={tmp_path}/vllm")
    assert f"{tmp_path}/bin/python setup.py" in made


def test_the_tools_of_vllms_environment_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "requirements"))
    module = load(ROOT / "requirements" / "vllm_env.py")
    names = {name.partition("==")[0] for name in module.pinned(module.LOCK, "ninja", "setuptools")}
    assert names == {"ninja", "setuptools"}
    assert len(module.pinned("requirements/constraints.txt", "pybind11")) == 1


def test_a_phase_says_how_long_it_took_and_what_concerns_rose(
    install: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    says = ["printf", "running build_ext\\nrose: built without device code\\n"]
    install.run(install.Phase("C++ core", "core", says))
    assert capsys.readouterr().out == "rose: C++ core: 0 s\nrose: built without device code\n"
