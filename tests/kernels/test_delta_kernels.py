"""The CUDA kernels on this CPU: the laws of every twin, and what only these kernels do."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.codec_cases import FLAT, KEYED, Case, answer, fast_threshold
from tests.codec_laws import TOPK, VECTORS, CodecLaws, DigestLaws, check_pack
from tests.kernels.cuda_twin import CudaTwin
from tests.kernels.on_cpu import BINS, DEFERRED, ROOT, SANITISED, KernelsOnCpu, Order, build
from tests.reference import delta as reference
from tests.reference.delta import Delta
from tests.vectors.delta_v2 import from_hex, numbers

SPECIAL = Case(16_384, 3_001, is_special=True)


@pytest.fixture(
    scope="module",
    params=[(Order.BACKWARD, 0), (Order.SHUFFLED, 4)],
    ids=["backward", "shuffled"],
)
def kernels(request: pytest.FixtureRequest, library: Path) -> KernelsOnCpu:
    """Run in one order of threads; arrays of elements are aligned to 16 bytes in the first only."""
    order, shift = request.param
    return KernelsOnCpu(library, order=order, shift=shift)


@pytest.fixture(scope="module")
def twin(kernels: KernelsOnCpu) -> CudaTwin:
    return CudaTwin(kernels)


class TestCuda(CodecLaws):
    """The CUDA kernels on this CPU."""


class TestCudaDigest(DigestLaws):
    """Digests of parts, by the same kernels."""


# ---- the flat kernels


class FlatTwin(CudaTwin):
    """Packs by the kernels for contiguous arrays of 16-bit elements."""

    def pack(self, *args: Any, **options: Any) -> Any:
        return super().pack(*args, **options, is_flat=True)


@pytest.fixture(params=list(Order), ids=lambda order: order.name)
def flat_kernels(request: pytest.FixtureRequest, library: Path) -> KernelsOnCpu:
    """Run in each order of threads, with arrays aligned to 16 bytes."""
    return KernelsOnCpu(library, order=request.param)


@pytest.mark.parametrize("case", FLAT, ids=str)
def test_flat_pack_is_the_reference(flat_kernels: KernelsOnCpu, case: Case) -> None:
    check_pack(FlatTwin(flat_kernels), answer(case), case)


@pytest.mark.parametrize("threshold", [1, 0x3A80, reference.NOTHING_SENT])
@pytest.mark.parametrize(
    "case",
    [
        Case(16_384, 3 * 16_384 + 5, 0.05, 0.5),
        Case(16_384, 16_384, 0.5, 0.5),
        Case(65_536, 65_536, 0.02, 1),
        Case(16_384, 16_384, is_special=True),
    ],
    ids=str,
)
def test_flat_pack_of_the_largest_changes_is_the_reference(
    flat_kernels: KernelsOnCpu, case: Case, threshold: int
) -> None:
    want = answer(case, threshold)
    if threshold == 0x3A80:  # it splits the changes of each case
        assert not np.array_equal(want.after, want.new)
        assert any(want.delta.entries)
    check_pack(FlatTwin(flat_kernels), want, case, threshold=threshold)


def test_flat_pack_of_many_arrays_is_the_reference(flat_kernels: KernelsOnCpu) -> None:
    counts = [16_384, 1, 40_000, 9, 16_385, 2_048, *[16_384] * 2, *[8] * 55]
    cases = [Case(16_384, count, 0.04, 0.3) for count in counts]
    wants = [answer(case) for case in cases]
    shadows = [want.old.copy() for want in wants]
    found = flat_kernels.pack_all([want.new for want in wants], shadows, block_elements=16_384)
    for want, shadow, packed in zip(wants, shadows, found, strict=True):
        assert (packed.entries, packed.payload()) == (want.delta.entries, want.delta.payload)
        assert np.array_equal(shadow, want.new)
        assert packed.digest == reference.digest(want.new, seed=3)


@pytest.mark.parametrize("share", [1, 4, 5])
def test_flat_pack_of_changes_in_one_place(flat_kernels: KernelsOnCpu, share: int) -> None:
    """The list of one warp is full, and then too short, while those beside it are empty."""
    old = answer(Case(65_536, 65_536, 0)).old
    new = old.copy()
    new[4_096 : 4_096 + 46 * share] ^= 0xFFFF
    new[4_096 * 16 - 1] += 1
    want = reference.pack(new, old.copy(), block_elements=65_536)
    shadow = old.copy()
    packed = flat_kernels.pack(new, shadow, block_elements=65_536, seed=7, is_flat=True)
    assert (packed.entries, packed.payload()) == (want.entries, want.payload)
    assert np.array_equal(shadow, new)
    assert packed.digest == reference.digest(new, seed=7)


@pytest.mark.parametrize("density", [0.05, 0.5])
def test_flat_pack_defers_a_block(flat_kernels: KernelsOnCpu, density: float) -> None:
    case = Case(16_384, 3 * 16_384, density)
    want = answer(case)
    need, shadow = len(want.delta.payload), want.old.copy()
    options = {"block_elements": case.block, "is_flat": True}
    first = flat_kernels.pack(want.new, shadow, arena_words=need - 1, **options)
    assert first.ends[-1] == need
    assert first.entries.count(DEFERRED) == 1
    late = first.entries.index(DEFERRED) * case.block
    after = want.new.copy()
    after[late : late + case.block] = want.old[late : late + case.block]
    assert np.array_equal(shadow, after)
    assert first.digest == reference.digest(shadow)
    flat_kernels.pack(want.new, shadow, has_digest=False, **options)
    assert np.array_equal(shadow, want.new)


def test_one_launch_applies_many_deltas_of_any_kind(kernels: KernelsOnCpu) -> None:
    cases = [Case(16_384, 16_384, 0.01), Case(16_384, 40_961, 0.3, width=8), Case(16_384, 1)]
    cases += [Case(16_384, 20_001, 0.02, width=32), Case(16_384, 16_390, 1, 1)]
    cases += [Case(16_384, 64)] * 18
    wants = [answer(case) for case in cases]
    weights = [want.old.copy() for want in wants]
    bad, digests = kernels.apply_all([want.delta for want in wants], weights)
    assert bad is None
    for want, one, digest in zip(wants, weights, digests, strict=True):
        assert np.array_equal(one, want.new)
        assert digest == reference.digest(want.new)


@pytest.mark.parametrize("case", KEYED, ids=str)
def test_histogram_is_the_reference(kernels: KernelsOnCpu, case: Case) -> None:
    want = answer(case)
    keys = reference.change_key(want.new, want.old)[want.new != want.old]
    assert np.array_equal(kernels.histogram(want.new, want.old), np.bincount(keys, minlength=BINS))


@pytest.mark.parametrize("width", [8, 16, 32])
def test_pack_without_a_shadow_is_the_delta_from_zeros(kernels: KernelsOnCpu, width: int) -> None:
    new = answer(Case(16_384, 16_401, 0.5, width=width)).new.copy()
    new[::3] = 0
    want = reference.pack(new, np.zeros_like(new), block_elements=16_384)
    packed = kernels.pack(new, None, block_elements=16_384)
    assert packed.entries == want.entries
    assert packed.payload() == want.payload


@pytest.mark.parametrize("case", VECTORS["merges"], ids=lambda case: case["name"])
def test_pack_of_differences_is_the_merge_of_a_vector(
    kernels: KernelsOnCpu, case: dict[str, Any]
) -> None:
    def delta(name: str) -> Delta:
        entries = from_hex(case[name]["entries"], "<u8").tolist()
        payload = from_hex(case[name]["payload"], "<u4").tolist()
        return Delta(case["count"], case["block_elements"], entries, payload, case["width"])

    differences = np.zeros(case["count"], numbers(case["width"]))
    for name in ("first", "second"):
        assert kernels.apply(delta(name), differences) is None
    packed = kernels.pack(differences, None, block_elements=case["block_elements"])
    assert (packed.entries, packed.payload()) == (delta("merged").entries, delta("merged").payload)


def test_16_byte_alignment_is_enough_for_one_array_only(library: Path) -> None:
    case = Case(16_384, 16_390, 0.1)
    for shift in (4, 8, 14):
        twin = CudaTwin(KernelsOnCpu(library, order=Order.SHUFFLED, shift=shift))
        check_pack(twin, answer(case), case)


@pytest.mark.parametrize("blocks", [1, 7])
def test_digest_does_not_depend_on_the_grid(kernels: KernelsOnCpu, blocks: int) -> None:
    want = answer(Case(16_384, 16_385))
    assert kernels.digest(want.new, seed=5, blocks=blocks) == reference.digest(want.new, seed=5)


def test_pack_without_a_digest_gives_the_same_delta(kernels: KernelsOnCpu) -> None:
    case = Case(16_384, 16_385)
    want = answer(case)
    packed = kernels.pack(want.new, want.old.copy(), block_elements=case.block, has_digest=False)
    assert packed.payload() == want.delta.payload
    assert packed.digest == (0, 0)


# ---- an arena that is too small ------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [None, 0x3C00])
@pytest.mark.parametrize("room", [0, 1, 0.5, -1])
def test_deferred_block_is_packed_by_the_next_pack(
    kernels: KernelsOnCpu, room: float, threshold: int | None
) -> None:
    case = Case(16_384, 5 * 16_384 + 77, 0.05)
    want = answer(case, threshold or 0)
    need = len(want.delta.payload)
    words = need - 1 if room == -1 else int(room * need) if room < 1 else 1
    shadow = want.old.copy()
    first = kernels.pack(
        want.new, shadow, block_elements=case.block, threshold=threshold, arena_words=words
    )
    assert first.ends[-1] == need, "the last end says how large an arena must be"
    deferred = [entry == DEFERRED for entry in first.entries]
    assert any(deferred)
    assert [entry for entry in first.entries if entry != DEFERRED] == [
        entry for entry, is_late in zip(want.delta.entries, deferred, strict=True) if not is_late
    ]
    # Read with the deferred blocks as EMPTY, it is the delta of what the shadow became.
    sent = [0 if is_late else entry for entry, is_late in zip(first.entries, deferred, strict=True)]
    after = want.old.copy()
    payload = first.arena[: sum(entry >> 44 for entry in sent)].tolist()
    reference.apply(Delta(case.count, case.block, sent, payload), after)
    assert np.array_equal(shadow, after)
    assert first.digest == reference.digest(shadow)

    second = kernels.pack(want.new, shadow, block_elements=case.block, threshold=threshold)
    assert second.entries == [
        entry if is_late else 0 for entry, is_late in zip(want.delta.entries, deferred, strict=True)
    ]
    assert np.array_equal(shadow, want.after)
    assert second.digest == reference.digest(shadow)
    assert payload + second.payload() == want.delta.payload


def test_arena_that_just_suffices_defers_nothing(kernels: KernelsOnCpu) -> None:
    case = Case(16_384, 40_961, 0.03, 0.2)
    want = answer(case)
    packed = kernels.pack(
        want.new,
        want.old.copy(),
        block_elements=case.block,
        arena_words=len(want.delta.payload),
    )
    assert packed.entries == want.delta.entries


# ---- top-k ---------------------------------------------------------------------------------------


def test_ages_at_any_address_grow(library: Path) -> None:
    for shift in (1, 5):
        twin = CudaTwin(KernelsOnCpu(library, order=Order.SHUFFLED, shift=shift))
        CodecLaws().test_due_changes_are_sent_and_ages_grow(
            twin, Case(16_384, 16_389, 0.4, 0.5), 300
        )


def test_deferred_block_keeps_its_ages(kernels: KernelsOnCpu) -> None:
    want = answer(TOPK)
    ages = reference.Ages(np.full(TOPK.count, 3, np.uint8), 9)
    packed = kernels.pack(
        want.new, want.old.copy(), block_elements=16_384, threshold=0x7000, ages=ages, arena_words=0
    )
    assert packed.entries[0] == DEFERRED
    assert (ages.counts[:16_384] == 3).all()


@pytest.mark.parametrize("width", [8, 16, 32])
def test_pack_without_an_arena_measures_and_moves_nothing(
    kernels: KernelsOnCpu, width: int
) -> None:
    want = answer(Case(16_384, 40_961, 0.03, 0.2, width=width))
    shadow = want.old.copy()
    packed = kernels.pack(want.new, shadow, block_elements=16_384, arena_words=0, seed=3)
    assert packed.ends[-1] == len(want.delta.payload)
    assert np.array_equal(shadow, want.old)
    assert packed.digest == reference.digest(want.old, seed=3)


@pytest.mark.parametrize("budget", [0, 1, 500, 1 << 40])
def test_threshold_found_by_halving_is_the_reference(budget: int) -> None:
    want = answer(SPECIAL)
    threshold = reference.topk_threshold(want.new, want.old, budget)
    assert fast_threshold(want.new, want.old, budget) == threshold


@pytest.mark.parametrize("at", [0, 1, 31, 32, 33, 12_345, 32_767])
def test_threshold_is_exact_at_every_place(kernels: KernelsOnCpu, at: int) -> None:
    histogram = np.zeros(BINS, np.uint64)
    histogram[at] = (1 << 33) + 1
    assert kernels.threshold(histogram, budget=1 << 33) == at + 1
    assert kernels.threshold(histogram, budget=(1 << 33) + 1) == 1


def test_threshold_zero_sends_every_change(kernels: KernelsOnCpu) -> None:
    want = answer(SPECIAL)
    packed = kernels.pack(want.new, want.old.copy(), block_elements=16_384, threshold=0)
    assert (packed.entries, packed.payload()) == (want.delta.entries, want.delta.payload)


# ---- output ------------------------------------------------------------------------------


def test_output_that_is_too_small_is_not_written(kernels: KernelsOnCpu) -> None:
    want = answer(Case(16_384, 40_961, 0.03, 0.2))
    changed = [entry >> 4 & 0xFFFFF for entry in want.delta.entries]
    positions, values, bad = kernels.unpack(want.delta, want.old, output_count=sum(changed) - 1)
    assert bad == len(changed) - 1
    whole = reference.topk_unpack(want.delta, want.old)
    sound = sum(changed[:-1])
    assert (positions[:sound], values[:sound]) == (whole[0][:sound], whole[1][:sound])
    assert set(values[sound:]) == {0xA5A5}


# ---- under the sanitizers ------------------------------------------------------------------------


def run_sanitised(library: Path, what: str) -> subprocess.CompletedProcess[str]:
    """Run `tests/kernels/sanitised.py` in a process that starts with the sanitizer's runtime."""
    runtime = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], text=True, capture_output=True, check=True
    )
    return subprocess.run(
        [sys.executable, "-m", "tests.kernels.sanitised", library, what],
        cwd=ROOT,
        env={
            "LD_PRELOAD": runtime.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture(scope="session")
def sanitised_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("kernels") / "sanitised.so", SANITISED)


@pytest.mark.parametrize("what", ["cases", "large_cases", "boxes", "damages"])
def test_kernels_touch_only_their_memory(sanitised_library: Path, what: str) -> None:
    done = run_sanitised(sanitised_library, what)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all agree\n"


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        ("short_arena", "heap-buffer-overflow"),
        ("misaligned_entries", "misaligned address"),
    ],
)
def test_planted_fault_is_caught(sanitised_library: Path, lie: str, says: str) -> None:
    done = run_sanitised(sanitised_library, lie)
    assert done.returncode != 0
    assert says in done.stderr


def test_guards_notice_writes_outside_of_memory(library: Path) -> None:
    kernels = KernelsOnCpu(library, order=Order.FORWARD)
    want = answer(Case(16_384, 33, 0.5))
    with pytest.raises(AssertionError, match="outside its memory"):
        kernels.pack(want.new, want.old.copy(), block_elements=16_384, arena_words=1, lie_words=9)
