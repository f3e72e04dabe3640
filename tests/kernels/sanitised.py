"""Run the cases on kernels that were built with sanitizers: `python -m tests.kernels.sanitised`.

A process of its own, because their runtime must be there before anything else. The arrays have no
guards here: each ends where its allocation ends, and the sanitizer watches that.
"""

import sys
from pathlib import Path

from tests.kernels import cases
from tests.kernels.on_cpu import KernelsOnCpu, Order


def run_cases(library: Path, *, order: Order, shift: int, counts: range) -> None:
    kernels = KernelsOnCpu(library, order=order, shift=shift, guard=0)
    for case in cases.CASES:
        if case.count not in counts:
            continue
        cases.pack_agrees(kernels, case)
        cases.apply_agrees(kernels, case)
        cases.unpack_agrees(kernels, case)
        cases.digest_agrees(kernels, case)
        if case.width == 16:
            cases.histogram_agrees(kernels, case)
    cases.ages_agree(kernels, cases.Case(16_384, 16_391, 0.4, 0.5), budget=500)


def run_boxes(kernels: KernelsOnCpu) -> None:
    for box in cases.BOXES:
        cases.box_agrees(kernels, box, 32)


def run_corruptions(kernels: KernelsOnCpu) -> None:
    for corruption in cases.corruptions():
        cases.corruption_changes_nothing(kernels, corruption)
        cases.corruption_lists_nothing(kernels, corruption)
    for delta in cases.cut_deltas():
        cases.cut_delta_is_found(kernels, delta)


def run(library: Path, what: str) -> None:
    kernels = KernelsOnCpu(library, order=Order.SHUFFLED, shift=2, guard=0)
    if what == "cases":
        run_cases(library, order=Order.SHUFFLED, shift=2, counts=range(20_000))
    elif what == "large_cases":  # of these the aligned ones: addresses are as in the small ones
        run_cases(library, order=Order.FORWARD, shift=0, counts=range(16_000, 66_000))
    elif what == "boxes":
        run_boxes(kernels)
    elif what == "corruptions":
        run_corruptions(kernels)
    else:
        plant_fault(library, what)
    print("all agree")


def plant_fault(library: Path, what: str) -> None:
    kernels = KernelsOnCpu(library, order=Order.FORWARD, guard=0)
    want = cases.answer(cases.Case(16_384, 33, 0.5))
    if what == "short_arena":
        kernels.pack(want.new, want.old.copy(), block_elements=16_384, arena_words=1, lie_words=9)
    elif what == "misaligned_entries":
        kernels.pack(want.new, want.old.copy(), block_elements=16_384, lie_shift=4)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
