"""Build `rose._core`, the C++20 core of rose, with ninja.

setuptools' own compile step follows no `#include` and does not notice changed flags; ninja does
both, so `python setup.py build_ext --inplace` rebuilds what a change touches and nothing else.
Everything about the project that is not the extension is in `pyproject.toml`.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import ninja
import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
WARNINGS = "-Wall -Wextra -Wconversion -Werror"
COMPILE = f"-std=c++20 -O3 -DNDEBUG -fPIC -fvisibility=hidden -pthread {WARNINGS}"
LINK = "-shared -pthread -Wl,-z,noexecstack -Wl,--strip-debug"
TARGET = "_core.so"
PROBE = "#include <bit>\n#include <concepts>\nstatic_assert(__cplusplus >= 202002L);\n"

# One rule per kind of input; a new kind (device code, assembly) is one more rule here and one more
# loop in `build_file`.
RULES = """
rule cxx
  command = $cxx $compile -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = C++ $in

rule link
  command = $cxx $in -o $out $link
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


def escape(path: Path | str) -> str:
    """Return `path` as ninja reads it back."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def build_file(sources: list[str]) -> str:
    """Return the text of a `build.ninja` that makes the extension from `sources`."""
    # The headers of others are -isystem: their warnings are not ours to mend.
    headers = [pybind11.get_include(), sysconfig.get_path("include")]
    include = [f"-I{ROOT / 'csrc'}", *(part for path in headers for part in ("-isystem", path))]
    text = [
        f"cxx = {shlex.join(compiler())}".replace("$", "$$"),
        # What the user sets comes last, so that it wins.
        f"compile = {COMPILE} {shlex.join(include)} {os.environ.get('CXXFLAGS', '')}",
        f"link = {LINK} {os.environ.get('LDFLAGS', '')}",
        RULES,
    ]
    objects = [escape(Path("obj", source).with_suffix(".o")) for source in sources]
    for source, object_ in zip(sources, objects, strict=True):
        text.append(f"build {object_}: cxx {escape(ROOT / source)}")
    text.append(f"build {TARGET}: link {' '.join(objects)}\n")
    return "\n".join(text)


class BuildWithNinja(build_ext):
    """Build one extension by a `build.ninja` of our own."""

    def build_extension(self, ext: Extension) -> None:
        """Write `build.ninja`, run it, and copy what it made to where setuptools wants it."""
        # Not `build_temp`: an editable install gets a new one each time, and the next build would
        # start from nothing.
        build = ROOT / "build" / f"core-{sysconfig.get_config_var('SOABI')}"
        build.mkdir(parents=True, exist_ok=True)
        with (build / "lock").open("w") as lock:
            # Two builds at once would spoil each other's objects.
            fcntl.flock(lock, fcntl.LOCK_EX)
            (build / "build.ninja").write_text(build_file(ext.sources))
            command = [str(Path(ninja.BIN_DIR, "ninja")), "-C", str(build)]
            if self.parallel:
                command += ["-j", str(self.parallel)]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(
                    "rose: the C++ core did not build; see the compiler's messages above"
                )
            target = Path(self.get_ext_fullpath(ext.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(build / TARGET), str(target))


sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.cpp"))
setup(
    ext_modules=[Extension("rose._core", sources)],
    cmdclass={"build_ext": BuildWithNinja},
)
