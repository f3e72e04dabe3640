"""Reads and barriers per block of the reading kernels, counted on this CPU."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.codec_cases import CASES, Case, answer
from tests.kernels.on_cpu import FLAGS, HERE, ROOT, KernelsOnCpu, Order

APPLY_BARRIERS_PER_BLOCK = 4
STEPS = [Case(65_536, 65_536 + 11, wild=wild) for wild in (0.0, 0.1, 1.0)]
STEPS += [Case(16_384, 16_384 + 11, density, 0.2) for density in (0.01, 0.1)]
STEPS += [Case(16_384, 16_384, width=width) for width in (8, 32)]


class Counting(KernelsOnCpu):
    """Counts the reads of each word of the payload in the last launch, and the barriers."""

    reads: list[int]
    barriers: int

    def launch(self, name: str, values: Any, *, blocks: int, threads: int) -> None:
        read = values.at[0] if name.startswith("delta_apply") else values
        words = read.payload_words
        self._library.watch(ctypes.c_uint64(read.payload), ctypes.c_size_t(words))
        super().launch(name, values, blocks=blocks, threads=threads)
        counted = self._library.reads_of_watched
        counted.restype = ctypes.POINTER(ctypes.c_uint32 * words)
        self.reads = list(counted().contents)
        self.barriers = self._library.barriers_of_last_run()


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Counting:
    """Build the kernels with a call at each access, and without ThreadSanitizer's runtime."""
    folder = tmp_path_factory.mktemp("reads")
    flags = [one for one in FLAGS if one != "-shared"] + ["-Wno-unknown-pragmas", "-O1"]
    hooks = ["-fsanitize=thread", "-U__SANITIZE_THREAD__"]
    include = [f"-I{ROOT / 'kernels'}", f"-I{HERE}"]
    unit, library = folder / "reads.o", folder / "reads.so"
    source = HERE / "reads_on_cpu.cpp"
    subprocess.run(["g++", *flags, *hooks, *include, "-c", source, "-o", unit], check=True)
    subprocess.run(["g++", "-shared", unit, "-o", library], check=True)
    return Counting(library, order=Order.FORWARD)


@pytest.mark.parametrize("case", STEPS, ids=str)
def test_payload_of_a_step_is_read_once(counting: Counting, case: Case) -> None:
    want = answer(case)
    weights = want.old.copy()
    assert counting.apply(want.delta, weights) is None
    assert np.array_equal(weights, want.new)
    assert counting.reads == [1] * len(want.delta.payload)
    counting.unpack(want.delta, want.old)
    assert counting.reads == [1] * len(want.delta.payload)


def test_more_reads_of_a_dense_payload_are_counted(counting: Counting) -> None:
    want = answer(Case(16_384, 16_384, 1, 1))
    counting.apply(want.delta, want.old.copy())
    assert max(counting.reads) > 1


@pytest.mark.parametrize("case", [case for case in CASES if case.count > 129], ids=str)
def test_apply_barriers_per_block(library: Path, case: Case) -> None:
    kernels, want = KernelsOnCpu(library, order=Order.FORWARD), answer(case)
    barriers = ctypes.CDLL(str(library)).barriers_of_last_run
    kernels.apply(want.delta, want.old.copy())
    assert barriers() <= APPLY_BARRIERS_PER_BLOCK
    kernels.unpack(want.delta, want.old)
    assert barriers() <= APPLY_BARRIERS_PER_BLOCK


def test_block_with_all_sections_takes_all_barriers(library: Path) -> None:
    want = answer(STEPS[1])
    KernelsOnCpu(library, order=Order.FORWARD).apply(want.delta, want.old.copy())
    assert ctypes.CDLL(str(library)).barriers_of_last_run() == APPLY_BARRIERS_PER_BLOCK
