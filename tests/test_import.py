"""`import rose` is light: it runs in every serving process, so it loads and opens nothing."""

import json
import subprocess
import sys
from functools import cache

import pytest

import rose

# Prints what an import loaded, and what it left open or running.
PROBE = """
import json, os, sys, threading
def libraries():
    return {{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}}
before, mapped = set(sys.modules), libraries()
{statement}
print(json.dumps({{
    "modules": sorted({{name.split(".")[0] for name in set(sys.modules) - before}}),
    "files": [os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd")
              if os.path.lexists(f"/proc/self/fd/{{fd}}")],
    "threads": len(os.listdir("/proc/self/task")),
    "own": sorted(name for name in sys.modules if name.split(".")[0] == "rose"),
    "libraries": sorted(libraries() - mapped),
}}))
"""
ROOMS = [
    "rose",
    "rose._core",
    "rose.api.device",
    "rose.cli.main",
    "rose.engines",
    "rose.engines.vllm",
    "rose.executor",
    "rose.kernels",
    "rose.memory",
    "rose.slo",
    "rose.transfer",
]
LABORATORY = "rose_lab"
HEAVY = {"torch", "transformers", "triton", "cupy", "ray", "vllm", "sglang", "matplotlib", "jinja2"}
COMMAND_LINE = {"click", "rich"}


@cache
def probe(statement: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(statement=statement)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("room", ROOMS)
def test_import_loads_no_framework_and_not_the_laboratory(room: str) -> None:
    assert not (HEAVY | {LABORATORY}) & set(probe(f"import {room}")["modules"])


def test_import_rose_loads_the_standard_library_and_numpy_at_most() -> None:
    modules = set(probe("import rose")["modules"])
    assert modules <= {"rose", "numpy", "typing_extensions", *sys.stdlib_module_names} | {
        name for name in modules if name.startswith("_")
    }
    assert not COMMAND_LINE & modules


def test_import_rose_loads_no_room_and_no_library() -> None:
    seen = probe("import rose")
    assert seen["own"] == ["rose"]
    assert not seen["libraries"]


def test_every_public_name_of_rose_is_loaded_at_its_first_use() -> None:
    for name in rose.__all__:
        assert getattr(rose, name).__name__.split(".")[-1] == name
    assert set(rose.__all__) <= set(dir(rose))
    with pytest.raises(AttributeError, match="nothing"):
        rose.nothing  # noqa: B018


def test_the_core_brings_itself_and_the_language_only() -> None:
    # Device code lies in the core as bytes; the driver is opened when somebody asks for a GPU.
    seen = probe("import rose._core")
    assert seen["own"] == ["rose", "rose._core"]
    names = {path.split("/")[-1].split(".")[0] for path in seen["libraries"]}
    assert "_core" in names
    assert names <= {"_core", "libstdc++", "libgcc_s", "libm"}


@pytest.mark.parametrize("room", ROOMS)
def test_import_opens_no_device_and_starts_nothing(room: str) -> None:
    seen = probe(f"import {room}")
    allowed = ("/dev/null", "/dev/pts/", "/dev/tty")
    devices = [file for file in seen["files"] if file.startswith("/dev/")]
    assert all(device.startswith(allowed) for device in devices)
    assert not [file for file in seen["files"] if "memfd:" in file]
    assert not [path for path in seen["libraries"] if "libcuda" in path or "libtorch" in path]


@pytest.mark.parametrize("room", ["rose", "rose._core", "rose.cli.main"])
def test_import_starts_no_thread(room: str) -> None:
    # numpy's linear algebra starts its own threads; without numpy there must be exactly one.
    seen = probe(f"import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'\nimport {room}")
    assert seen["threads"] == 1


def test_the_probe_sees_what_it_looks_for() -> None:
    seen = probe(
        "import click\nkept = os.memfd_create('kept')\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    assert "click" in seen["modules"]
    assert seen["threads"] == 2
    assert [file for file in seen["files"] if "memfd:kept" in file]
