"""The extension holds, for each kernel, machine code for three devices and PTX for the others."""

import os
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.building.project import BUILD, extension, kernels, needs_nvcc, run

pytestmark = [pytest.mark.timeout(600), needs_nvcc]

MAGIC = 0xBA55ED50
KINDS = {1: "PTX", 2: "ELF"}
WANTED = {("ELF", 80), ("ELF", 90), ("ELF", 100), ("PTX", 80)}


def contents(fatbin: bytes) -> Iterator[tuple[str, int]]:
    """Yield (kind, architecture) of each entry. The format is not documented: a test aid only."""
    magic, _, at, size = struct.unpack_from("<IHHQ", fatbin)
    assert magic == MAGIC
    end = at + size
    assert end == len(fatbin)
    while at < end:
        kind, _, header_bytes, payload_bytes = struct.unpack_from("<HHIQ", fatbin, at)
        (architecture,) = struct.unpack_from("<I", fatbin, at + 28)
        yield KINDS[kind], architecture
        at += header_bytes + payload_bytes


def fatbins(project: Path) -> dict[str, bytes]:
    folder = project / BUILD / "kernels"
    return {name: (folder / f"{name}.fatbin").read_bytes() for name in kernels(project)}


def test_every_kernel_is_built_for_every_device(built: Path) -> None:
    all_fatbins = fatbins(built)
    assert {"planted_scale", "planted_shift"} <= set(all_fatbins)
    for name, fatbin in all_fatbins.items():
        found = list(contents(fatbin))
        assert set(found) == WANTED, name
        assert len(found) == len(WANTED), name


def test_the_extension_holds_every_fatbin(built: Path) -> None:
    library = extension(built).read_bytes()
    for name, fatbin in fatbins(built).items():
        assert library.count(fatbin) == 1, name


# Writes what the driver room sees into files named as it sees them; fails where one is not aligned.
DUMP_TABLE = """
#include <fstream>
#include "driver/kernel_library.h"
int main() {
  for (const rose::driver::Fatbin& one : rose::driver::embedded_fatbins()) {
    const auto* bytes = reinterpret_cast<const char*>(one.bytes.data());
    if (reinterpret_cast<std::uintptr_t>(bytes) % 64 != 0) return 1;
    std::ofstream{std::string{one.name} + ".dump"}.write(bytes, std::ssize(one.bytes));
  }
}
"""


def test_the_table_gives_each_name_its_own_bytes(built: Path, tmp_path: Path) -> None:
    (tmp_path / "dump.cpp").write_text(DUMP_TABLE)
    cxx = shlex.split(os.environ.get("CXX") or "g++")
    objects = [built / BUILD / "obj" / name for name in ("fatbin_table.o", "fatbins.o")]
    include = f"-I{built / 'csrc'}"
    done = run(*cxx, "-std=c++20", include, "dump.cpp", *objects, "-o", "dump", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert run(tmp_path / "dump", cwd=tmp_path).returncode == 0
    dumped = {path.stem: path.read_bytes() for path in tmp_path.glob("*.dump")}
    assert dumped == fatbins(built)


def test_device_code_gives_no_executable_stack_and_needs_no_cuda_library(built: Path) -> None:
    headers = run("readelf", "-lW", "-d", extension(built), cwd=built).stdout
    (stack,) = (line for line in headers.splitlines() if "GNU_STACK" in line)
    assert " RW " in stack
    needed = [line for line in headers.splitlines() if "(NEEDED)" in line]
    assert any("libstdc++" in line for line in needed)
    assert not [line for line in needed if "cuda" in line or "nv" in line]
