"""Run the cases on kernels that were built with sanitizers: `python -m tests.kernels.sanitised`.

A process of its own, because their runtime must be there before anything else. The arrays have no
guards here: each ends where its allocation ends, and the sanitizer watches that.
"""

import sys
from pathlib import Path

from tests.kernels import cases
from tests.kernels.on_cpu import KernelsOnCpu, Order


def run_cases(library: Path) -> None:
    # The largest cases cost most of the time, and their addresses are those of the smaller ones.
    for order, shift, count_max in ((Order.SHUFFLED, 2, 20_000), (Order.FORWARD, 0, 70_000)):
        kernels = KernelsOnCpu(library, order=order, shift=shift, guard=0)
        for case in cases.CASES:
            if case.count > count_max:
                continue
            cases.pack_agrees(kernels, case)
            cases.apply_agrees(kernels, case)
            cases.unpack_agrees(kernels, case)
            cases.digest_agrees(kernels, case)
            if case.width == 16:
                cases.histogram_agrees(kernels, case)
        for box in cases.BOXES:
            cases.box_agrees(kernels, box, 32)
        cases.ages_agree(kernels, cases.Case(16_384, 16_391, 0.4, 0.5), budget=500)
        for corruption in cases.corruptions():
            cases.corruption_changes_nothing(kernels, corruption)
            cases.corruption_lists_nothing(kernels, corruption)
        for delta in cases.cut_deltas():
            cases.cut_delta_is_found(kernels, delta)


def main() -> None:
    library, what = Path(sys.argv[1]), sys.argv[2]
    kernels = KernelsOnCpu(library, order=Order.FORWARD, guard=0)
    want = cases.answer(cases.Case(16_384, 33, 0.5))
    if what == "cases":
        run_cases(library)
        print("all agree")
    elif what == "short_arena":
        kernels.pack(want.new, want.old.copy(), block_elements=16_384, arena_words=1, lie_words=9)
    elif what == "misaligned_entries":
        kernels.pack(want.new, want.old.copy(), block_elements=16_384, lie_shift=4)


if __name__ == "__main__":
    main()
