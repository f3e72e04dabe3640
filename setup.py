"""Build `rose._core`, the C++20 core of rose and its device code, with ninja.

`bench/lab` is the laboratory, a distribution of its own. Its extension `rose_lab._sim` is linked
from some of the same objects. `build_ext --inplace` builds both extensions in one run of ninja; the
wheel of each distribution holds its own (`bench/lab/setup.py` uses this file).

setuptools' own compile step follows no `#include` and does not notice changed flags; ninja does
both, so `python setup.py build_ext --inplace` rebuilds what a change touches and nothing else.
Everything about the project that is not the extension is in `pyproject.toml`.

Each `kernels/<name>.cu` becomes a fat binary inside the extension, which the driver loads at run
time: neither libcuda nor libcudart is linked. `ROSE_CUDA` says whether:

    auto (default)  yes where nvcc is found; otherwise the extension holds no device code
    on              yes; without nvcc the build stops
    off             no

The C++ is the same in all three; only the table of embedded fat binaries differs. `ROSE_CUDA_ARCH`
("90" or "80,90") names other devices than ours.

The sources of a room are compiled together, as a file of `#include` lines in the build folder:
headers, which cost more than the sources, are then read once. `ROSE_FAST=1` compiles each source by
itself, so an edit costs one source; `make build FAST=1` sets it. Both kinds of object live side by
side, so a change of mode rebuilds nothing that is current. ccache is used where it is on the path.
"""

import fcntl
import filecmp
import logging
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import ninja
import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build" / f"core-{sysconfig.get_config_var('SOABI')}"
UP = Path("..", "..")  # from BUILD to ROOT
WARNINGS = "-Wall -Wextra -Wconversion -Werror"
COMPILE = f"-std=c++20 -DNDEBUG -fPIC -fvisibility=hidden -pthread {WARNINGS}"
LINK = "-shared -pthread -Wl,-z,noexecstack -Wl,--strip-debug"
CORE: Final = "rose._core"
SIMULATOR: Final = "rose_lab._sim"
LABORATORY: Final = Path("bench", "lab")
# What the simulator is linked from, besides rooms of its own. The core registers their classes.
SHARED_ROOMS: Final = ("base", "scheduler")
# What goes into a wheel: without the names of functions, which profilers and tests want.
STRIPPED = "stripped"
FAST = "fast"
# Loops over elements gain from -O3; elsewhere it makes the extension larger and no call faster.
# Bindings, half of the time of a build, are called as fast at -O1 and take two thirds of it.
LEVEL = "-O2"
LEVEL_OF_ROOM = {
    **dict.fromkeys(("bind", "bind_sim"), "-O1"),
    **dict.fromkeys(("scheduler", "sim", "transfer"), "-O3"),
}
# Translation units of a room, where one is not enough for two cores or 4 GiB of memory.
UNITS_OF_ROOM = {"bind": 4, "transfer": 2}
PROBE = "#include <bit>\n#include <concepts>\nstatic_assert(__cplusplus >= 202002L);\n"

# Machine code for these; the driver compiles the PTX of the first for every other device.
ARCHITECTURES = (80, 90, 100)
DEVICE = " ".join(
    [
        "-c -fatbin -std=c++20 -O3 -Werror all-warnings",
        "-Xptxas=-v",  # ptxas says what spills
        "-Xfatbin=-compress-all",
    ]
)
DEFAULT_CUDA = "/usr/local/cuda"

# One rule per kind of input.
RULES = """
rule cxx
  command = $cxx $options $compile -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = C++ $in

rule nvcc
  command = $nvcc $device -MD -MF $out.d $in -o $out > $out.log 2>&1 || { cat $out.log; exit 1; }
  depfile = $out.d
  deps = gcc
  description = CUDA $in

rule asm
  command = $cxx -c $in -o $out
  description = asm $in

rule link
  command = $cxx $in -o $out $link $strip
  description = link $out
"""


def compiler() -> list[str]:
    """Return the command of a compiler that was seen to accept C++20, or stop with one sentence."""
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    name, mend = shlex.join(command), "(install g++ >= 11 or set CXX)"
    if shutil.which(command[0]) is None:
        raise SystemExit(f"rose: no C++20 compiler: '{name}' not found {mend}")
    probe = [*command, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    if subprocess.run(probe, input=PROBE, text=True, capture_output=True, check=False).returncode:
        raise SystemExit(f"rose: no C++20 compiler: '{name}' does not compile C++20 {mend}")
    return command


def cached(command: list[str]) -> list[str]:
    """Return `command` behind ccache, where that is on the path and not part of it already."""
    ccache = shutil.which("ccache")
    return [ccache, *command] if ccache and Path(command[0]).name != "ccache" else command


def device_codes() -> list[str]:
    """Return what tells nvcc the devices to compile for, all of them in one call."""
    named = os.environ.get("ROSE_CUDA_ARCH", "").replace(",", " ").split()
    if not all(one.isdecimal() for one in named):
        raise SystemExit(
            f"rose: ROSE_CUDA_ARCH='{','.join(named)}' must list architectures, as '80,90' does"
        )
    found = named or [str(one) for one in ARCHITECTURES]
    codes = [f"arch=compute_{arch},code=sm_{arch}" for arch in found]
    codes.append(f"arch=compute_{found[0]},code=compute_{found[0]}")
    return [part for code in codes for part in ("-gencode", code)]


def find_nvcc() -> str | None:
    """Return the first nvcc that is there. ROSE_NVCC is an order: where it is set, nothing else."""
    if named := os.environ.get("ROSE_NVCC"):
        places = [named]
    else:
        homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
        places = [*(f"{home}/bin/nvcc" for home in homes if home), "nvcc"]
        places.append(f"{DEFAULT_CUDA}/bin/nvcc")
    found = next((path for place in places if (path := shutil.which(place))), None)
    return found and str(Path(found).absolute())  # ninja runs it in the build folder


def device_compiler() -> list[str] | None:
    """Return an nvcc that was seen to accept our flags, or None for a build without device code.

    With it comes how to compress. "size" is the smallest, and takes a driver of CUDA 12.4 to read;
    what nvcc 13 makes takes one of CUDA 13 anyhow, while nvcc 12 serves drivers from 12.0 on.
    """
    mode = os.environ.get("ROSE_CUDA") or "auto"
    if mode not in {"auto", "on", "off"}:
        raise SystemExit(f"rose: ROSE_CUDA='{mode}' means nothing (set it to auto, on or off)")
    if mode == "off":
        return None
    nvcc = find_nvcc()
    if nvcc is None:
        named = os.environ.get("ROSE_NVCC")
        where = f"CUDA_HOME, CUDA_PATH, PATH or {DEFAULT_CUDA}"
        missing = f"ROSE_NVCC='{named}' is no program" if named else f"it is not in {where}"
        if mode == "on":
            mend = "(install the CUDA toolkit >= 12.8, set ROSE_NVCC, or set ROSE_CUDA=off)"
            raise SystemExit(f"rose: ROSE_CUDA=on but nvcc was not found: {missing} {mend}")
        return None
    probe = [nvcc, *DEVICE.split(), *device_codes(), "--dryrun"]
    probe += ["-x", "cu", os.devnull, "-o", "probe.fatbin"]
    done = subprocess.run(probe, text=True, capture_output=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["it says nothing"]
        mend = "(install the CUDA toolkit >= 12.8, or set ROSE_CUDA=off)"
        raise SystemExit(f"rose: '{nvcc}' cannot compile the kernels: {said[-1]} {mend}")
    is_12 = "-D__CUDACC_VER_MAJOR__=12 " in done.stderr
    return [nvcc, f"--compress-mode={'speed' if is_12 else 'size'}"]


def assembly(kernels: list[str]) -> str:
    """Return assembly that holds each fat binary and, beside it, its size."""
    # Without this note the linker would give the whole extension an executable stack.
    text = ['.section .note.GNU-stack,"",@progbits']
    for name in kernels:
        blob = f"rose_fatbin_{name}"
        text += [
            f'.section .rodata.{blob},"a",@progbits',
            f".globl {blob}, {blob}_bytes",
            f".hidden {blob}, {blob}_bytes",
            ".balign 64",
            f'{blob}: .incbin "kernels/{name}.fatbin"',
            f".Lend_{name}: .size {blob}, . - {blob}",
            ".balign 8",
            f"{blob}_bytes: .quad .Lend_{name} - {blob}",
        ]
    return "\n".join([*text, ""])


def table(kernels: list[str]) -> str:
    """Return the C++ that defines what `driver/kernel_library.h` says the build defines."""
    blobs = [f"rose_fatbin_{name}" for name in kernels]
    extern, hidden = "extern const std::", '__attribute__((visibility("hidden")))'
    declared = [
        f"{extern}byte {blob}[] {hidden};\n{extern}size_t {blob}_bytes {hidden};" for blob in blobs
    ]
    rows = [
        f'{{"{name}", {{{blob}, {blob}_bytes}}}}' for name, blob in zip(kernels, blobs, strict=True)
    ]
    body = f"static const Fatbin all[] = {{{', '.join(rows)}}};\n  return all;" if rows else ""
    return "\n".join(
        [
            '#include "driver/kernel_library.h"',
            'extern "C" {',
            *declared,
            "}",
            "std::span<const rose::driver::Fatbin> rose::driver::embedded_fatbins() noexcept {",
            f"  {body or 'return {};'}",
            "}\n",
        ]
    )


def write(path: Path, text: str) -> None:
    """Write a generated file, unless it says that already: ninja goes by the time of a change."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def escape(path: Path | str) -> str:
    """Return `path` as ninja reads it back."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def units_of(sources: list[str]) -> dict[str, list[str]]:
    """Return the sources of each translation unit, the units that take longest first.

    Every n-th source of a room goes into the same unit, so a source that grows moves no other. A
    source for one set of instructions is alone, so that the pragmas it needs for its intrinsics
    reach no other.
    """
    rooms: dict[str, list[str]] = {}
    units = {}
    for source in sources:
        path = Path(source)
        if path.stem.endswith(("_avx2", "_avx512")):
            units[f"unity/{path.parent.name}_{path.name}"] = [source]
        else:
            rooms.setdefault(path.parent.name, []).append(source)
    for room in sorted(rooms, key=lambda room: (-UNITS_OF_ROOM.get(room, 1), room)):
        count = UNITS_OF_ROOM.get(room, 1)
        for at in range(count):
            units[f"unity/{room}_{at + 1}.cpp"] = rooms[room][at::count]
    return units


def sources_of(extension: str) -> list[str]:
    """Return the C++ sources of an extension, from the root."""
    own = LABORATORY / "csrc"
    shared = [Path("csrc", room) for room in SHARED_ROOMS]
    folders = [Path("csrc")] if extension == CORE else [own, *shared]
    found = (path for folder in folders for path in ROOT.glob(f"{folder}/**/*.cpp"))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def target_of(extension: str, mode: str = "") -> str:
    """Return the file that ninja links, from the build folder.

    Args:
        extension: name of the extension.
        mode: `FAST`, `STRIPPED`, or nothing for an extension that is built in place.
    """
    return str(Path(mode, f"{extension.rpartition('.')[2]}.so"))


def unit_text(sources: list[str]) -> str:
    """Return the C++ of a unit: its sources, each with the warnings that it asks for."""
    lines = [
        # This warning is about headers: it spares the file that the compiler was given, and takes
        # the sources that the file includes for headers.
        "#if defined(__GNUC__) && !defined(__clang__)",
        '#pragma GCC diagnostic ignored "-Wsubobject-linkage"',
        "#endif",
    ]
    for source in sources:
        lines += [
            "#pragma GCC diagnostic push",
            f'#include "{source.rpartition("csrc/")[2]}"',
            "#pragma GCC diagnostic pop",
        ]
    return "\n".join([*lines, ""])


def build_file(extensions: Mapping[str, list[str]], kernels: list[str], nvcc: list[str]) -> str:
    """Return the text of a `build.ninja` that makes extensions, each from its sources.

    The core also holds the `kernels`. A source that two extensions share is compiled once.

    Paths of the project are relative to the build folder, so that a copy of the project with its
    build folder is as up to date as the original.
    """
    project = [f"-I{UP}", f"-I{UP / 'csrc'}"]
    # The headers of others are -isystem: their warnings are not ours to mend.
    headers = [pybind11.get_include(), sysconfig.get_path("include")]
    include = [*project, *(part for path in headers for part in ("-isystem", path))]
    text = [
        f"cxx = {shlex.join(cached(compiler()))}".replace("$", "$$"),
        # What the user sets comes last, so that it wins.
        f"compile = {COMPILE} {shlex.join(include)} {os.environ.get('CXXFLAGS', '')}",
        f"options = {LEVEL}",
        f"nvcc = {shlex.join(nvcc)}".replace("$", "$$"),
        f"device = {DEVICE} {shlex.join([*device_codes(), *project])}",
        f"link = {LINK} {os.environ.get('LDFLAGS', '')}",
        RULES,
    ]
    units = {name: units_of(sources) for name, sources in extensions.items()}
    compiled = {"fatbin_table.cpp": (Path("fatbin_table.cpp"), Path())}  # with the folder of a room
    for name, sources in extensions.items():
        for unit, together in units[name].items():
            compiled[unit] = Path(unit), Path(together[0]).parent
        compiled |= {source: (UP / source, Path(source).parent) for source in sources}
    object_of = {name: str(Path("obj", name).with_suffix(".o")) for name in compiled}
    for name, (source, folder) in compiled.items():
        text.append(f"build {escape(object_of[name])}: cxx {escape(source)}")
        options = LEVEL_OF_ROOM.get(folder.name, LEVEL)
        if folder.is_relative_to(LABORATORY):
            options += f" -I{UP / LABORATORY / 'csrc'}"
        if options != LEVEL:
            text.append(f"  options = {options}")
    embedded = [object_of["fatbin_table.cpp"]]
    if kernels:
        fatbins = [f"kernels/{name}.fatbin" for name in kernels]
        for name, fatbin in zip(kernels, fatbins, strict=True):
            text.append(f"build {fatbin} | {fatbin}.log: nvcc {escape(UP / f'kernels/{name}.cu')}")
        # No dependency file knows what .incbin reads.
        text.append(f"build obj/fatbins.o: asm fatbins.S | {' '.join(fatbins)}")
        embedded.append("obj/fatbins.o")
    for name, sources in extensions.items():
        own = embedded if name == CORE else []
        unity, single = (
            " ".join([*(escape(object_of[one]) for one in parts), *own])
            for parts in (units[name], sources)
        )
        text += [f"build {target_of(name)}: link {unity}"]
        text += [f"build {target_of(name, FAST)}: link {single}"]
        text += [f"build {target_of(name, STRIPPED)}: link {unity}", "  strip = -Wl,--strip-all"]
    targets = " ".join(target_of(name) for name in extensions)
    return "\n".join([*text, f"default {targets}\n"])


def write_build(kernels: Iterable[str], nvcc: list[str]) -> None:
    """Write all that ninja reads into the build folder, for every extension that is here."""
    kernels = list(kernels)
    here = {CORE: sources_of(CORE)}
    if (ROOT / LABORATORY).is_dir():
        here[SIMULATOR] = sources_of(SIMULATOR)
    write(BUILD / "fatbin_table.cpp", table(kernels))
    if kernels:
        write(BUILD / "fatbins.S", assembly(kernels))
    for sources in here.values():
        for unit, together in units_of(sources).items():
            (BUILD / unit).parent.mkdir(exist_ok=True)
            write(BUILD / unit, unit_text(together))
    write(BUILD / "build.ninja", build_file(here, kernels, nvcc))


def extension(name: str) -> Extension:
    """Return an extension as setuptools knows it; its sources are ours to find."""
    return Extension(name, [])


class BuildWithNinja(build_ext):
    """Build extensions by a `build.ninja` of our own."""

    def finalize_options(self) -> None:
        """Add the extension of the laboratory to a build in place, if this is a checkout."""
        if self.inplace and (ROOT / LABORATORY).is_dir():
            self.distribution.ext_modules = [extension(CORE), extension(SIMULATOR)]
            self.distribution.package_dir["rose_lab"] = str(LABORATORY / "rose_lab")
        super().finalize_options()

    def run(self) -> None:
        """Keep what setuptools forgets while it builds: whether the target is the source tree."""
        self.is_in_place = bool(self.inplace or self.editable_mode)
        # `requirements/install.py` builds in place at the same time and says so.
        if not (self.editable_mode and os.environ.get("ROSE_CORE") == "elsewhere"):
            super().run()

    def build_extensions(self) -> None:
        """Write `build.ninja`, run it, and copy what it made to where setuptools wants it."""
        nvcc = device_compiler()
        if nvcc is None:
            text = "rose: built without device code (no nvcc, or ROSE_CUDA=off)"
            self.announce(text, level=logging.INFO)
        kernels = sorted(path.stem for path in ROOT.glob("kernels/*.cu")) if nvcc else []
        is_fast = self.is_in_place and os.environ.get("ROSE_FAST") == "1"
        mode = FAST if is_fast else "" if self.is_in_place else STRIPPED
        made = [target_of(ext.name, mode) for ext in self.extensions]
        # Not `build_temp`: an editable install gets a new one each time, and the next build would
        # start from nothing.
        BUILD.mkdir(parents=True, exist_ok=True)
        with (BUILD / "lock").open("w") as lock:
            # Two builds at once would spoil each other's objects.
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_build(kernels, nvcc or [])
            # ninja would start two jobs more than there are cores, each with its memory.
            jobs = self.parallel or len(os.sched_getaffinity(0))
            command = [str(Path(ninja.BIN_DIR, "ninja")), "-C", str(BUILD), "-j", str(jobs), *made]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(
                    "rose: the C++ core did not build; see the compiler's messages above"
                )
            for ext, source in zip(self.extensions, made, strict=True):
                target = Path(self.get_ext_fullpath(ext.name))
                target.parent.mkdir(parents=True, exist_ok=True)
                # setuptools keeps a target that is newer, which a build of the other mode may be.
                if not (target.exists() and filecmp.cmp(BUILD / source, target)):
                    self.force = True
                    self.copy_file(str(BUILD / source), str(target))

    def copy_file(self, infile: str, outfile: str, **_: object) -> tuple[str, bool]:
        """Write `outfile` whole or not at all; setuptools would take a half of it for current.

        It is renamed into its place, so a process that has the old one mapped keeps that.
        """
        part = Path(f"{outfile}.part")
        try:
            shutil.copy2(infile, part)
            part.replace(outfile)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise SystemExit(f"rose: cannot write {outfile}: {error.strerror}") from error
        return outfile, True


if __name__ == "__main__":  # the tests and the laboratory import this file
    setup(ext_modules=[extension(CORE)], cmdclass={"build_ext": BuildWithNinja})
