"""Run the cases on kernels that were built with sanitizers: `python -m tests.kernels.sanitised`.

A process of its own, because their runtime must be there before anything else. The arrays have no
guards here: each ends where its allocation ends, and the sanitizer watches that.
"""

import sys
from pathlib import Path

from tests.codec_cases import BOXES, CASES, Case, answer, damages
from tests.codec_laws import CodecLaws
from tests.kernels.cuda_twin import CudaTwin
from tests.kernels.on_cpu import KernelsOnCpu, Order

LAWS = CodecLaws()


def run_cases(twin: CudaTwin, counts: range) -> None:
    for case in CASES:
        if case.count not in counts:
            continue
        LAWS.test_pack_is_the_reference(twin, case)
        LAWS.test_apply_and_undo_are_the_reference(twin, case)
        LAWS.test_unpack_is_the_reference(twin, case)
        LAWS.test_digest_is_the_reference(twin, case)
        if case.width == 16:
            LAWS.test_largest_changes_fit_the_budget(twin, case)
    LAWS.test_due_changes_are_sent_and_ages_grow(twin, Case(16_384, 16_391, 0.4, 0.5), 500)


def run(library: Path, what: str) -> None:
    kernels = KernelsOnCpu(library, order=Order.SHUFFLED, shift=2, guard=0)
    if what == "cases":
        run_cases(CudaTwin(kernels), range(20_000))
    elif what == "large_cases":  # aligned only: small cases have other addresses
        aligned = KernelsOnCpu(library, order=Order.FORWARD, guard=0)
        run_cases(CudaTwin(aligned), range(16_000, 66_000))
    elif what == "boxes":
        for box in BOXES:
            LAWS.test_box_is_changed_where_it_lies(CudaTwin(kernels), box, 32)
    elif what == "damages":
        for damage in damages():
            LAWS.test_damaged_block_changes_nothing(CudaTwin(kernels), damage)
        for cut in (0, 1):
            LAWS.test_cut_payload_changes_nothing_past_its_end(CudaTwin(kernels), cut)
    else:
        plant_fault(library, what)
    print("all agree")


def plant_fault(library: Path, what: str) -> None:
    kernels = KernelsOnCpu(library, order=Order.FORWARD, guard=0)
    want = answer(Case(16_384, 33, 0.5))
    if what == "short_arena":
        kernels.pack(want.new, want.old.copy(), block_elements=16_384, arena_words=1, lie_words=9)
    elif what == "misaligned_entries":
        kernels.pack(want.new, want.old.copy(), block_elements=16_384, lie_shift=4)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
