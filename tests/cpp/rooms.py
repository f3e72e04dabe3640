"""Build one sanitised program of each room's C++ tests.

A program holds the units of `setup.py` for its room and for each room below that it includes, one
unit more with all test files of its room, and no device code: the table that the build generates is
empty. Objects stay in `build/cpp-<sanitizer>`, and ninja compiles again what a change touches.
"""

import fcntl
import os
import re
import shlex
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final

import ninja

from tests.building.project import SETUP

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
ROOMS: Final = sorted({path.parent.name for path in HERE.glob("*/*_test.cpp")})
FLAGS: Final = {
    # -Og takes half as long again to compile, most of it for the checks of UBSan.
    "asan": "-O0 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer",
    "tsan": "-O1 -fsanitize=thread",
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
    """Return the sources of a room of csrc, from the root."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"csrc/{room}/**/*.cpp"))


def rooms_used(room: str) -> list[str]:
    """Return the rooms of csrc whose headers the tests of `room` and these rooms include."""
    found: set[str] = set()
    left = {room, *_rooms_named(HERE / room)}
    while left:
        found |= left
        left = {name for one in left for name in _rooms_named(ROOT / "csrc" / one)} - found
    return sorted(found)


def _rooms_named(folder: Path) -> set[str]:
    texts = (path.read_text() for path in folder.rglob("*") if path.suffix in {".h", ".cpp"})
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


def _ninja_text(sanitizer: str) -> str:
    up = SETUP.UP
    cxx = shlex.join(SETUP.cached(SETUP.compiler()))
    # A path in a message is the one from the root, and a copy of the tree compiles nothing again.
    include = f"-I{up} -I{up / 'csrc'} -I{up / 'tests/cpp'} -ffile-prefix-map={up}/="
    text = [f"cxx = {cxx}", f"flags = {COMMON} {FLAGS[sanitizer]} {include}", _RULES]
    objects: dict[str, list[str]] = {"": ["fatbin_table.o"]}
    text.append("build fatbin_table.o: cxx fatbin_table.cpp")
    for room in ROOMS:
        units = [Path(unit) for unit in SETUP.units_of(sources_of(room))]
        objects[room] = [str(unit.with_suffix(".o")) for unit in units]
        text += [f"build {unit.with_suffix('.o')}: cxx {unit}" for unit in units]
    for room in ROOMS:
        made = " ".join(one for used in ["", *rooms_used(room)] for one in objects[used])
        text += [f"build tests/{room}.o: cxx tests/{room}.cpp", f"  room = -I{up}/tests/cpp/{room}"]
        text.append(f"build {room}: link tests/{room}.o {made}")
    return "\n".join([*text, ""])


def build(rooms: Collection[str], sanitizer: str) -> subprocess.CompletedProcess[str]:
    """Build the programs of rooms, as many as can be; what is current is not built again."""
    folder = folder_of(sanitizer)
    for part in (folder / "unity", folder / "tests"):
        part.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run must not build here now
        SETUP.write(folder / "fatbin_table.cpp", SETUP.table([]))
        for room in ROOMS:
            SETUP.write(folder / "tests" / f"{room}.cpp", tests_text(room))
            for unit, together in SETUP.units_of(sources_of(room)).items():
                SETUP.write(folder / unit, SETUP.unit_text(together))
        SETUP.write(folder / "build.ninja", _ninja_text(sanitizer))
        jobs = str(len(os.sched_getaffinity(0)))  # ninja would start two more, each with its memory
        command = [str(Path(ninja.BIN_DIR, "ninja")), "-k0", "-j", jobs, "-C", str(folder), *rooms]
        return subprocess.run(command, text=True, capture_output=True, check=False)


def folder_of(sanitizer: str) -> Path:
    """Return where the objects and the programs are."""
    return ROOT / "build" / f"cpp-{sanitizer}"
