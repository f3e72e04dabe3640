"""Build one sanitised program of each room's C++ tests, and those of `bench/` and `examples/`.

Rooms are those of csrc and of the laboratory. A program holds the units of `setup.py` for each room
that it includes, directly or through these rooms, and no device code: the table that the build
generates is empty. A room's tests are one unit with all of its test files. Objects stay in
`build/cpp-<kind>`, and ninja compiles again what a change touches.
"""

import fcntl
import os
import re
import shlex
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import ninja

from tests.building.project import SETUP

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
ROOMS: Final = sorted({path.parent.name for path in HERE.glob("*/*_test.cpp")})
FOLDERS: Final = (ROOT / "csrc", ROOT / SETUP.LABORATORY / "csrc")
# Source of each program of `bench/` and `examples/`, from the root, by its name.
PROGRAMS: Final = {
    path.stem: path.relative_to(ROOT)
    for folder in ("bench", "examples")
    for path in sorted((ROOT / folder).glob("*.cpp"))
}
SANITIZERS: Final = ("asan", "tsan")
FLAGS: Final = {
    # -Og takes half as long again to compile, most of it for the checks of UBSan.
    "asan": "-O0 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer",
    "tsan": "-O1 -fsanitize=thread",
    # A benchmark measures the code of the extension: -O3 is the level of the scheduler there.
    "bench": "-O3 -DNDEBUG",
}
COMMON: Final = "-std=c++20 -g1 -pthread -Wall -Wextra -Wconversion -Werror"
_INCLUDE: Final = re.compile(r"^#include .*$", re.MULTILINE)
_ROOM: Final = re.compile(r'^#include "(\w+)/', re.MULTILINE)
_RULES: Final = """
rule cxx
  command = $cxx $flags $room -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = C++ $in

rule link
  command = $cxx $flags $in -o $out
  description = link $out
"""


def sources_of(room: str) -> list[str]:
    """Return the sources of a room, from the root."""
    return sorted(str(path.relative_to(ROOT)) for path in folder_of_room(room).rglob("*.cpp"))


def folder_of_room(room: str) -> Path:
    """Return where the sources of a room are."""
    return next(path for path in (one / room for one in FOLDERS) if path.is_dir())


def rooms_used(sources: Iterable[Path]) -> list[str]:
    """Return the rooms whose headers `sources` include, directly or through these rooms."""
    found: set[str] = set()
    left = _rooms_named(sources)
    while left:
        found |= left
        left = {name for room in left for name in _rooms_named(folder_of_room(room).rglob("*"))}
        left -= found
    return sorted(found)


def _rooms_named(paths: Iterable[Path]) -> set[str]:
    texts = (path.read_text() for path in paths if path.suffix in {".h", ".cpp"})
    return {name for text in texts for name in _ROOM.findall(text)}.intersection(ROOMS)


def tests_text(room: str) -> str:
    """Return the C++ of the unit that holds all test files of a room.

    Each has a namespace of its own, so headers are included before, where there is none.
    """
    files = sorted((HERE / room).glob("*_test.cpp"))
    lines = dict.fromkeys(line for file in files for line in _INCLUDE.findall(file.read_text()))
    for file in files:
        lines[f'namespace {file.stem} {{\n#include "{file.relative_to(ROOT)}"\n}}'] = None
    main = "int main(int count, char** arguments) { return rose::test::run(count, arguments); }"
    return "\n".join([*lines, main, ""])


def _ninja_text(kind: str) -> str:
    up = SETUP.UP
    cxx = shlex.join(SETUP.cached(SETUP.compiler()))
    # A path in a message is the one from the root, and a copy of the tree compiles nothing again.
    folders = " ".join(f"-I{up / folder.relative_to(ROOT)}" for folder in FOLDERS)
    include = f"-I{up} {folders} -I{up / 'tests/cpp'} -ffile-prefix-map={up}/="
    text = [f"cxx = {cxx}", f"flags = {COMMON} {FLAGS[kind]} {include}", _RULES]
    objects: dict[str, list[str]] = {"": ["fatbin_table.o"]}
    text.append("build fatbin_table.o: cxx fatbin_table.cpp")
    for room in ROOMS:
        units = [Path(unit) for unit in SETUP.units_of(sources_of(room))]
        objects[room] = [str(unit.with_suffix(".o")) for unit in units]
        text += [f"build {unit.with_suffix('.o')}: cxx {unit}" for unit in units]

    def made(sources: Iterable[Path]) -> str:
        return " ".join(one for used in ["", *rooms_used(sources)] for one in objects[used])

    for room in ROOMS:
        text += [f"build tests/{room}.o: cxx tests/{room}.cpp", f"  room = -I{up}/tests/cpp/{room}"]
        text.append(f"build {room}: link tests/{room}.o {made((HERE / room).rglob('*'))}")
    for program, source in PROGRAMS.items():
        text.append(f"build {program}.o: cxx {up / source}")
        text.append(f"build {program}: link {program}.o {made([ROOT / source])}")
    return "\n".join([*text, ""])


def build(programs: Collection[str], kind: str) -> subprocess.CompletedProcess[str]:
    """Build as many as can be of the programs; what is current is not built again.

    Args:
        programs: rooms with tests, or names of `PROGRAMS`.
        kind: a key of `FLAGS`.
    """
    folder = folder_of(kind)
    for part in (folder / "unity", folder / "tests"):
        part.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run must not build here now
        SETUP.write(folder / "fatbin_table.cpp", SETUP.table([]))
        for room in ROOMS:
            SETUP.write(folder / "tests" / f"{room}.cpp", tests_text(room))
            for unit, together in SETUP.units_of(sources_of(room)).items():
                SETUP.write(folder / unit, SETUP.unit_text(together))
        SETUP.write(folder / "build.ninja", _ninja_text(kind))
        jobs = str(len(os.sched_getaffinity(0)))  # ninja would start two more, each with its memory
        command = [
            str(Path(ninja.BIN_DIR, "ninja")),
            "-k0",
            "-j",
            jobs,
            "-C",
            str(folder),
            *programs,
        ]
        return subprocess.run(command, text=True, capture_output=True, check=False)


def folder_of(kind: str) -> Path:
    """Return where the objects and the programs are."""
    return ROOT / "build" / f"cpp-{kind}"
