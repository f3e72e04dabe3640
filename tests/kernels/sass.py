"""Read the machine code of kernels: blocks, loops, scoreboards, and what a multiprocessor holds.

nvcc compiles a source for one device and nvdisasm prints it, from the toolkit or from Triton's
package. How often an instruction runs comes from `sass_run`, which executes the machine code for
sm_90 on a CPU.
"""

import functools
import importlib.util
import itertools
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.building.project import NVCC
from tests.kernels.on_cpu import ROOT

# Per multiprocessor of each device that we build for.
WARPS: Final = 64
CTAS: Final = 32
REGISTERS: Final = 65_536
SHARED_BYTES: Final = {80: 167_936, 90: 233_472, 100: 233_472}
RESERVED_BYTES: Final = 1_024  # per CTA

_LINE: Final = re.compile(
    r"/\*(?P<at>[0-9a-f]{4,})\*/\s+(?P<text>[^;]+?)\s*;\s*/\* 0x[0-9a-f]{16} \*/\s*"
    r"/\* 0x(?P<control>[0-9a-f]{16}) \*/|^(?P<label>[.$]?[\w.$]+):$",
    re.MULTILINE,
)
_USE: Final = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers(?:.*?(\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `waits` and `sets` are bit masks of scoreboards."""

    at: int
    guard: str
    op: str
    operands: tuple[str, ...]
    waits: int
    sets: int

    @property
    def target(self) -> str:
        """Return the label of a branch."""
        return self.operands[-1][2:-1] if self.operands and "`(" in self.operands[-1] else ""


@dataclass(frozen=True)
class Kernel:
    """The machine code of one kernel, and the report of ptxas."""

    name: str
    architecture: int
    code: tuple[Instruction, ...]
    labels: Mapping[str, int]
    registers: int
    shared_bytes: int
    spill_bytes: int

    def occupancy(self, threads: int) -> float:
        """Return the share of a multiprocessor's warps that CTAs of `threads` threads occupy."""
        warps = threads // 32
        # Registers are given to a warp in units of 256, shared memory in units of 128 bytes.
        of_warp = -(-self.registers * 32 // 256) * 256
        shared = -(-self.shared_bytes // 128) * 128 + RESERVED_BYTES
        room = SHARED_BYTES[self.architecture] // shared
        ctas = min(CTAS, WARPS // warps, REGISTERS // (of_warp * warps), room)
        return ctas * warps / WARPS

    def blocks(self) -> list[range]:
        """Return the basic blocks, as ranges of indices into `code`."""
        starts = {0, *(at // 16 for at in self.labels.values())}
        starts |= {i + 1 for i, one in enumerate(self.code) if _ends_block(one)}
        edges = [*sorted(start for start in starts if start < len(self.code)), len(self.code)]
        return [range(*pair) for pair in itertools.pairwise(edges)]

    def loops(self) -> list[frozenset[int]]:
        """Return each natural loop, as the indices of its instructions."""
        blocks = self.blocks()
        at = {block.start: block for block in blocks}
        before: dict[int, set[int]] = {block.start: set() for block in blocks}
        for block in blocks:
            for follower in self._followers(block):
                if follower in at:
                    before[follower].add(block.start)
        found: dict[int, set[int]] = {}
        for head, sources in before.items():
            for tail in sources:
                if tail < head:
                    continue
                inside, todo = {head}, [tail]
                while todo:
                    one = todo.pop()
                    if one not in inside:
                        inside.add(one)
                        todo += before[one]
                if min(inside) == head:  # else no loop: code that was moved behind the end
                    found.setdefault(head, set()).update(*(at[one] for one in inside))
        return [frozenset(inside) for _, inside in sorted(found.items())]

    def _followers(self, block: range) -> list[int]:
        last = self.code[block[-1]]
        branch = [self.labels[last.target] // 16] if last.op.startswith("BRA") else []
        falls = last.guard or len(last.operands) > 1 or last.op.split(".")[0] not in _LEAVES
        return [*branch, block.stop] if falls else branch

    def is_wide_load(self, i: int) -> bool:
        """Return whether instruction `i` loads 128 bits of global memory."""
        op = self.code[i].op.split(".")
        return op[0] == "LDG" and "128" in op

    def loads_in_flight(self, loop: frozenset[int]) -> int:
        """Return how many 128-bit loads of a loop are issued before it waits for the first."""
        loads = boards = 0
        for i in sorted(loop):
            one = self.code[i]
            if one.waits & boards:
                break
            if self.is_wide_load(i):
                loads += 1
                boards |= one.sets
        return loads


_LEAVES: Final = frozenset({"BRA", "EXIT", "RET"})


def _ends_block(one: Instruction) -> bool:
    return one.op.split(".")[0] in {*_LEAVES, "CALL", "BSYNC"}


def disassembler() -> str | None:
    """Return nvdisasm: of the toolkit, of the path, or of Triton."""
    triton = importlib.util.find_spec("triton")
    folders = [Path(NVCC).parent] if NVCC else []
    if triton is not None and triton.origin:
        folders.append(Path(triton.origin).parent / "backends/nvidia/bin")
    places = [shutil.which("nvdisasm", path=folder) for folder in folders]
    return next(filter(None, [*places, shutil.which("nvdisasm")]), None)


needs_sass = pytest.mark.skipif(
    NVCC is None or disassembler() is None, reason="there is no nvcc or no nvdisasm here"
)


def nvcc_version() -> str:
    """Return the release of nvcc, as 13.0."""
    assert NVCC
    found = re.search(r"release (\d+\.\d+)", _output(NVCC, "--version"))
    assert found
    return found[1]


@functools.cache
def compiled(source: Path, into: Path, architecture: int) -> dict[str, Kernel]:
    """Compile a source for a device and return its kernels by name."""
    assert NVCC
    disassemble = disassembler()
    assert disassemble
    cubin = into / f"{source.stem}.{architecture}.cubin"
    flags = [
        "-cubin",
        f"-arch=sm_{architecture}",
        "-std=c++20",
        "-O3",
        "-Xptxas=-v",
        f"-I{ROOT / 'kernels'}",
    ]
    log = _output(NVCC, *flags, str(source), "-o", str(cubin))
    text = _output(disassemble, "-c", "-hex", str(cubin))
    uses = {name: tuple(int(one or 0) for one in rest) for name, *rest in _USE.findall(log)}
    kernels = {}
    for part in re.split(r"//-+ \.text\.", text)[1:]:
        name = part.split()[0]
        labels: dict[str, int] = {}
        code: list[Instruction] = []
        for match in _LINE.finditer(part):
            if match["label"]:
                labels[match["label"]] = 16 * len(code)
            else:
                code.append(_instruction(match["text"], int(match["at"], 16), match["control"]))
        stores, loads, registers, shared = uses[name]
        kernels[name] = Kernel(
            name, architecture, tuple(code), labels, registers, shared, stores + loads
        )
    return kernels


def _instruction(text: str, at: int, control: str) -> Instruction:
    guard, _, rest = text.partition(" ") if text.startswith("@") else ("", "", text)
    op, _, operands = rest.strip().partition(" ")
    split = tuple(one.strip() for one in operands.split(",")) if operands else ()
    bits = int(control, 16) >> 41  # stall 4, yield 1, write 3, read 3, waits 6, reuse 4
    board = bits >> 5 & 7
    return Instruction(at, guard[1:], op, split, bits >> 11 & 63, 0 if board == 7 else 1 << board)


def _output(*command: str) -> str:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
