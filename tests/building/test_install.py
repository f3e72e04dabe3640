"""`make install` ends in one sentence that names a log, and leaves nothing running."""

import importlib.util
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import ninja
import pytest

from tests.building.project import ROOT

FULL = [sys.executable, "-c", "with open('/dev/full', 'w') as file: file.write('much')"]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module that keeps its logs in a folder of this test."""
    path = ROOT / "requirements" / "install.py"
    spec = importlib.util.spec_from_file_location("rose_install", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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


def test_without_a_compiler_the_core_says_so(install: ModuleType) -> None:
    command = [sys.executable, str(ROOT / "setup.py"), "-q", "build_ext"]
    core = install.Phase("C++ core", "core", command, CXX="/nonexistent/g++")
    said = reason(install, core)
    assert said.startswith("no C++20 compiler: '/nonexistent/g++' not found (")
    assert said.endswith(" (log: build/install-core.log)")


def test_each_phase_says_how_long_it_took(
    install: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    install.run(install.Phase("build tools", "tools", ["true"]))
    assert capsys.readouterr().out == "rose: build tools: 0 s\n"
