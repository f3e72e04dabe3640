"""Wide instructions stay in the functions that are named after them.

A machine without them must never meet one: neither in the base path nor in an inline function of
which the linker kept the wrong copy.
"""

import platform
import re
import shutil
import subprocess

import pytest

from rose import _core

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("objdump") is None,
    reason="needs objdump on x86-64",
)

WIDEST = re.compile(r"%zmm|%k[1-7]\b|%[xy]mm(?:1[6-9]|2\d|3[01])\b")
# Every AVX instruction begins with a v, on a narrow register too; the last ones are BMI.
WIDE = re.compile(r"%ymm|\tv\w+ .*%xmm|\t(?:blsr|andn)\s")
POPCNT = re.compile(r"\tpopcnt\s")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")


def strays(listing: str) -> set[str]:
    """Return the functions that use instructions their names do not promise."""
    found, name = set(), ""
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            name = match[1]
        elif (
            (WIDEST.search(line) and "avx512" not in name)
            or (WIDE.search(line) and "avx2" not in name and "avx512" not in name)
            or (POPCNT.search(line) and "popcnt" not in name and "avx" not in name)
        ):
            found.add(name)
    return found


@pytest.fixture(scope="module")
def listing() -> str:
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", _core.__file__]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_wide_registers_are_used_where_they_may_be(listing: str) -> None:
    assert strays(listing) == set()


def test_every_version_is_there_and_wide(listing: str) -> None:
    wide = {name for name in re.findall(r"<(.+)>:\n", listing) if "avx" in name}
    for name in ("find_changed_avx2", "add_words_avx2", "find_changed_avx512", "add_words_avx512"):
        assert any(name in one for one in wide), name
    assert WIDE.search(listing)
    assert WIDEST.search(listing)


def test_a_stray_is_found() -> None:
    base = "0000 <rose::plain()>:\n  10:\tvpaddq %{},%{},%{}\n"
    assert strays(base.replace("vpaddq %{},%{},%{}", "paddq  %xmm1,%xmm2")) == set()
    assert strays(base.replace("{}", "xmm1")) == {"rose::plain()"}
    assert strays(base.replace("vpaddq %{},%{},%{}", "blsr   %rax,%rdx")) == {"rose::plain()"}
    assert strays(base.replace("vpaddq %{},%{},%{}", "popcnt %rax,%rdx")) == {"rose::plain()"}
    assert strays(base.replace("{}", "ymm1")) == {"rose::plain()"}
    assert strays(base.replace("{}", "zmm1")) == {"rose::plain()"}
    assert strays(base.replace("{}", "xmm17")) == {"rose::plain()"}
    assert strays(base.replace("plain", "f_avx2").replace("{}", "ymm1")) == set()
    assert strays(base.replace("plain", "f_avx2").replace("{}", "zmm1")) == {"rose::f_avx2()"}
