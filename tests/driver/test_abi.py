"""The driver's binary interface, as `csrc/driver` writes it down, is that of the toolkit."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.building.project import toolkit_include

ROOT = Path(__file__).resolve().parents[2]
CHECK = Path(__file__).with_name("abi_check.cpp")
DRIVER = ROOT / "csrc" / "driver"
FLAGS = "-std=c++20 -fsyntax-only -Wall -Wextra -Wno-unused -Werror"
HEADERS = toolkit_include()

needs_toolkit = pytest.mark.skipif(
    HEADERS is None, reason="there is no CUDA toolkit here: nothing to compare with"
)


def compile_check(core: Path) -> subprocess.CompletedProcess[str]:
    cxx = shlex.split(os.environ.get("CXX") or "g++")
    include = [f"-I{core}", "-isystem", str(HEADERS)]
    command = [*cxx, *FLAGS.split(), *include, str(CHECK)]
    return subprocess.run(command, text=True, capture_output=True, check=False)


def entries() -> list[tuple[str, str]]:
    return re.findall(r"\bX\((cu\w+), (\d+),", (DRIVER / "entries.h").read_text())


def test_there_are_entries() -> None:
    names = [name for name, _ in entries()]
    assert {"cuInit", "cuMemMap", "cuLaunchKernel"} <= set(names)
    assert len(names) == len(set(names))


@needs_toolkit
def test_every_entry_has_a_typedef_of_its_version() -> None:
    assert HEADERS
    known = set(re.findall(r"\*PFN_(\w+)_v(\d+)\)", (HEADERS / "cudaTypedefs.h").read_text()))
    assert len(known) > 100
    assert not set(entries()) - known
    # The pair that taught us: this name has signatures of 10.0 and 11.0 only.
    assert ("cuGraphInstantiate", "12000") not in known


@needs_toolkit
def test_types_and_entries_are_those_of_the_toolkit() -> None:
    done = compile_check(ROOT / "csrc")
    assert done.returncode == 0, done.stderr


def fields(body: str) -> set[str]:
    """Return the names that a structure's body declares, inner ones too."""
    return set(re.findall(r"[\w*] (\w+)(?:\[\d+\])?;", body)) | set(re.findall(r"} (\w+);", body))


def test_the_check_leaves_out_no_structure_field_or_constant() -> None:
    text, check = (DRIVER / "abi.h").read_text(), CHECK.read_text()
    constants = re.findall(r"^constexpr \w+ (k\w+)", text, re.MULTILINE)
    structures = dict(re.findall(r"^struct (\w+) {.*?\n(.*?)^};", text, re.MULTILINE | re.DOTALL))
    assert len(constants) > 20
    assert len(structures) > 5
    missing = [name for name in constants if f"CONSTANT({name}," not in check]
    for name, body in structures.items():
        missing += [] if f"STRUCTURE({name}," in check else [name]
        for field in fields(body):
            row = rf"FIELD\({name}, (?:\w+, )?{field},|offsetof\({name}, {field}\)"
            missing += [] if re.search(row, check) else [f"{name}::{field}"]
    assert not missing, f"tests/driver/abi_check.cpp says nothing of {missing}"


# file, what is there, what is planted, what the compiler must name
FAULTS = {
    "a version with no typedef": (
        "entries.h",
        "cuGraphInstantiateWithFlags, 11040",
        "cuGraphInstantiateWithFlags, 12000",
        "PFN_cuGraphInstantiateWithFlags_v12000",
    ),
    "an argument too small": (
        "entries.h",
        "cuMemAddressFree, 10020, kRequired, (DevicePointer, std::size_t)",
        "cuMemAddressFree, 10020, kRequired, (DevicePointer, unsigned)",
        "cuMemAddressFree: an argument differs",
    ),
    "another return type": (
        "abi.h",
        "using Answer = int;",
        "using Answer = long;",
        "cuInit: the return type differs",
    ),
    "two fields that changed places": (
        "abi.h",
        "  int type;\n  int id;",
        "  int id;\n  int type;",
        "MemoryLocation::type: the place differs",
    ),
    "another number": (
        "abi.h",
        "kAttributeWaitValueNor = 123",
        "kAttributeWaitValueNor = 94",
        "kAttributeWaitValueNor is not CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR",
    ),
}


@needs_toolkit
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_does_not_compile(tmp_path: Path, fault: str) -> None:
    name, right, wrong, says = FAULTS[fault]
    shutil.copytree(DRIVER, tmp_path / "driver")
    header = tmp_path / "driver" / name
    text = header.read_text()
    assert text.count(right) == 1, f"{name} does not have {right!r} once"
    header.write_text(text.replace(right, wrong))
    done = compile_check(tmp_path)
    assert done.returncode != 0
    assert says in done.stderr
