"""Wide registers are used only by functions that are named for them.

One translation unit may not leak AVX code into a function that runs on every machine, as inline
functions do when two units that share them are compiled with different flags.
"""

import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.building.project import extension, run

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="other registers on this machine"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed"),
]

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
AVX512 = re.compile(r"%zmm|%k[0-7]\b|%[xy]mm(?:1[6-9]|2\d|3[01])\b")
# The three-operand instructions of AVX, also those on 128 bits, and BMI: a machine without AVX2 has
# none.
AVX2 = re.compile(r"%ymm|\tv[a-z0-9]+ .*%xmm|\tvzero|\t(?:blsr|andn)\s")
POPCNT = re.compile(r"\tpopcnt\s")


def instructions(library: Path) -> Iterator[tuple[str, str]]:
    """Yield (function, instruction) of everything in a library."""
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", library]
    name = ""
    for line in run(*command, cwd=library.parent).stdout.splitlines():
        if match := FUNCTION.match(line):
            name = match[1]
        elif line.startswith(" "):
            yield name, line


def leaks(code: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return each function that uses registers it is not named for, with the first such use."""
    found: dict[str, str] = {}
    for name, line in code:
        if (
            (AVX512.search(line) and "avx512" not in name)
            or (AVX2.search(line) and "avx2" not in name and "avx512" not in name)
            or (POPCNT.search(line) and "popcnt" not in name and "avx" not in name)
        ):
            found.setdefault(name, line.strip())
    return found


@pytest.fixture(scope="module")
def code(built: Path) -> list[tuple[str, str]]:
    return list(instructions(extension(built)))


def test_wide_registers_stay_in_functions_named_for_them(code: list[tuple[str, str]]) -> None:
    assert leaks(code) == {}


def test_the_extension_keeps_the_names_of_its_functions(
    built: Path, code: list[tuple[str, str]]
) -> None:
    names = {name for name, _ in code}
    assert len([name for name in names if name.startswith("rose::")]) > 50
    text = "".join(path.read_text() for path in built.glob("csrc/**/*.cpp"))
    for level in ("avx2", "avx512"):
        if f'target("{level}' in text:
            assert [name for name in names if level in name], f"no function of {level} has a name"


PLANTED = """
#include <immintrin.h>
namespace planted {
__attribute__((target("avx2"))) void add_avx2(int* a) {
  auto at = reinterpret_cast<__m256i*>(a);
  _mm256_storeu_si256(at, _mm256_add_epi32(_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)));
}
__attribute__((target("avx512f"))) void add_avx512(int* a) {
  _mm512_storeu_si512(a, _mm512_add_epi32(_mm512_loadu_si512(a), _mm512_loadu_si512(a + 16)));
}
__attribute__((target("avx512f"))) void wrong_avx2(int* a) {
  _mm512_storeu_si512(a, _mm512_add_epi32(_mm512_loadu_si512(a), _mm512_loadu_si512(a + 16)));
}
__attribute__((target("avx512f,avx512vl"))) void masked(int* a, unsigned char mask) {
  auto at = reinterpret_cast<__m128i*>(a);
  _mm_mask_storeu_epi32(a + 4, mask, _mm_loadu_si128(at));
}
__attribute__((target("avx2"))) void wide(int* a) {
  auto at = reinterpret_cast<__m256i*>(a);
  _mm256_storeu_si256(at, _mm256_add_epi32(_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)));
}
__attribute__((target("avx"))) void narrow(float* a) {
  _mm_storeu_ps(a, _mm_add_ps(_mm_loadu_ps(a), _mm_loadu_ps(a + 4)));
}
void plain(float* a) { _mm_storeu_ps(a, _mm_add_ps(_mm_loadu_ps(a), _mm_loadu_ps(a + 4))); }
}  // namespace planted
"""


def test_planted_leak_is_found(tmp_path: Path) -> None:
    (tmp_path / "planted.cpp").write_text(PLANTED)
    cxx = shlex.split(os.environ.get("CXX") or "g++")
    flags = "-std=c++20 -O2 -shared -fPIC planted.cpp -o planted.so".split()
    done = run(*cxx, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {name.split("(")[0] for name in leaks(instructions(tmp_path / "planted.so"))}
    assert found == {f"planted::{name}" for name in ("wrong_avx2", "masked", "wide", "narrow")}
