"""Codecs on a GPU: the laws of every twin, on bits that each run draws anew, and large arrays.

The CUDA kernels are tested without torch, because a sanitizer runs those tests: memory is allocated
buffer by buffer. Triton has few sizes and alignments, because it compiles each of its kernels anew
for every kind of argument.
"""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from rose import _core
from tests.codec_cases import BLOCK, BOXES, CASES, Case, answer
from tests.codec_laws import VECTORS, CodecLaws, DigestLaws, check_pack
from tests.codec_twins import CodecTwin
from tests.gpu.twins import CudaTwin, OnGpu
from tests.reference import delta as reference
from tests.reference.delta import Bits, Delta

pytestmark = pytest.mark.gpu

LARGE: Final = 65_536
MASK64: Final = (1 << 64) - 1
SEED: Final = int.from_bytes(os.urandom(4), "little")


@pytest.fixture(autouse=True)
def _shows_the_seed() -> None:
    print(f"seed of the cases {SEED}")


@pytest.fixture(scope="module")
def cuda(device: Any) -> CudaTwin:
    return CudaTwin(device)


@pytest.fixture(scope="module")
def triton(gpu: None) -> CodecTwin:
    pytest.importorskip("triton")
    from rose.kernels.triton_codec import TritonCodec

    return CodecTwin(TritonCodec(), OnGpu)


class TestCuda(CodecLaws):
    """The CUDA kernels."""

    cases = tuple(replace(case, seed=SEED) for case in CASES)

    @pytest.fixture(scope="class")
    def twin(self, cuda: CudaTwin) -> CudaTwin:
        return cuda


class TestCudaDigest(DigestLaws):
    """Digests of parts, by the CUDA kernels."""

    @pytest.fixture(scope="class")
    def twin(self, cuda: CudaTwin) -> CudaTwin:
        return cuda


class TestEmbedded(CodecLaws):
    """The embedded codec, on tensors of torch."""

    cases = TestCuda.cases

    @pytest.fixture(scope="class")
    def twin(self, gpu: None) -> CodecTwin:
        pytest.importorskip("torch")
        from rose.kernels.embedded import EmbeddedCodec

        return CodecTwin(EmbeddedCodec(0), OnGpu)


class TestTriton(CodecLaws):
    """The Triton codec, on tensors of torch."""

    cases = tuple(
        replace(case, seed=SEED)
        for case in CASES
        if case.count in {1, 33, 5_001, 16_385, 33_001, 65_537, 65_569}
    )
    budgets = (0, 500, 1 << 40)
    boxes = tuple(box for box in BOXES if box.name in {"rows", "four_permuted"})
    packs = tuple(VECTORS["packs"][::5])

    @pytest.fixture(scope="class")
    def twin(self, triton: CodecTwin) -> CodecTwin:
        return triton


# ---- any address, large arrays


@pytest.mark.parametrize("skew_bytes", [2, 4, 6, 8, 14])
def test_array_may_have_any_address(device: Any, skew_bytes: int) -> None:
    twin, case = CudaTwin(device, skew_bytes=skew_bytes), Case(LARGE, 20_011, 0.05, seed=SEED)
    check_pack(twin, answer(case), case)
    CodecLaws().test_apply_and_undo_are_the_reference(twin, case)
    CodecLaws().test_digest_is_the_reference(twin, case)


@pytest.mark.parametrize("skew", [1, 4])
def test_tensor_of_triton_may_have_any_address(triton: CodecTwin, skew: int) -> None:
    twin, case = CodecTwin(triton.codec, lambda bits: OnGpu(bits, skew)), Case(LARGE, 20_011, 0.05)
    check_pack(twin, answer(case), case)
    CodecLaws().test_apply_and_undo_are_the_reference(twin, case)
    CodecLaws().test_digest_is_the_reference(twin, case)


def two_versions(rng: np.random.Generator, count: int, share: float) -> tuple[Bits, Bits]:
    """Return new and old bits; all patterns occur, NaN and subnormals too."""
    old = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    size = np.where(rng.random(count) < 0.89, 1, rng.integers(2, (1 << 15) + 1, count))
    move = np.where(rng.random(count) < 0.5, size, (1 << 16) - size).astype(np.uint16)
    move[rng.random(count) >= share] = 0
    return old + move, old


@pytest.mark.parametrize("name", ["cuda", "triton"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.2, 0.9])
def test_millions_of_elements_are_packed_as_by_the_core(
    request: pytest.FixtureRequest, rng: np.random.Generator, name: str, share: float
) -> None:
    twin = request.getfixturevalue(name)
    new, old = two_versions(rng, 5_000_011, share)
    shadow, held = old.copy(), old.copy()
    entries, payload, *_ = _core.delta_pack(new, held, block_elements=LARGE)
    delta, digest = twin.pack(new, shadow, block_elements=LARGE)
    assert delta == Delta(len(new), LARGE, entries.tolist(), payload.tolist())
    assert np.array_equal(shadow, new)
    first_index, seed = twin.place
    assert digest == _core.digest(new, first_index=first_index, seed=seed)


@pytest.mark.parametrize("name", ["cuda", "triton"])
def test_millions_have_the_threshold_of_the_core(
    request: pytest.FixtureRequest, rng: np.random.Generator, name: str
) -> None:
    new, old = two_versions(rng, 4_000_037, 0.3)
    for budget in (0, 1000, 100_000, 2_000_000):
        wanted = _core.topk_threshold(new, old, budget=budget)
        assert request.getfixturevalue(name).threshold(new, old, budget=budget) == wanted


def digest_of_triton(bits: Bits, *, first_index: int = 0) -> tuple[int, int]:
    from rose.kernels.digest import digest
    from rose.kernels.gpu import pairs_of

    return pairs_of(digest(OnGpu(bits).tensor, first_index=first_index))[0]


@pytest.mark.parametrize("name", ["cuda", "triton"])
def test_digests_of_parts_add_up(
    request: pytest.FixtureRequest, rng: np.random.Generator, name: str
) -> None:
    twin = request.getfixturevalue(name)
    digest: Callable[..., Any] = twin.digest if name == "cuda" else digest_of_triton
    bits = rng.integers(0, 1 << 16, 1_000_003, dtype=np.uint16)
    cuts = [0, 4, 40_000, 999_996, len(bits)]
    parts = [digest(bits[at:end], first_index=at) for at, end in itertools.pairwise(cuts)]
    whole = tuple(sum(part[which] for part in parts) & MASK64 for which in range(2))
    assert digest(bits) == whole == _core.digest(bits)


# ---- an arena that is too small


def test_deferred_blocks_are_packed_by_the_next_pack(
    cuda: CudaTwin, rng: np.random.Generator
) -> None:
    new, old = two_versions(rng, 10 * BLOCK + 5, 0.3)
    needed = cuda.pack_into(new, old.copy(), block_elements=BLOCK).words
    shadow = old.copy()
    first = cuda.pack_into(new, shadow, block_elements=BLOCK, arena_words=needed // 2)
    assert first.words == needed
    assert 0 < len(first.deferred) < len(first.delta.entries)
    for block in range(len(first.delta.entries)):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        expected = old if block in first.deferred else new
        assert np.array_equal(shadow[part], expected[part])
    first_index, seed = cuda.place
    assert first.digest == reference.digest(shadow, first_index=first_index, seed=seed)
    rest = cuda.pack_into(new, shadow, block_elements=BLOCK)
    assert rest.deferred == []
    weights = old.copy()
    assert cuda.apply(first.delta, weights) is None
    assert cuda.apply(rest.delta, weights) is None
    assert np.array_equal(weights, new)


def test_arena_without_room_defers_all_blocks(cuda: CudaTwin, rng: np.random.Generator) -> None:
    new, old = two_versions(rng, 3 * BLOCK, 0.5)
    shadow = old.copy()
    packed = cuda.pack_into(new, shadow, block_elements=BLOCK, arena_words=1)
    assert packed.deferred == [0, 1, 2]
    assert np.array_equal(shadow, old)
    assert packed.words > 1


def test_launcher_names_the_refused_address(device: Any) -> None:
    from rose.errors import InvalidArgument

    launcher = _core.DeviceCodec.create(device)
    with pytest.raises(InvalidArgument, match="bits is null"):
        launcher.digest(bits=0, width=16, count=4, sums=256, stream=0)
    with pytest.raises(InvalidArgument, match="multiple of 8"):
        launcher.digest(bits=256, width=16, count=4, sums=260, stream=0)
