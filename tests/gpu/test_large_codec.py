"""More elements than 32 bits can count: positions, offsets and digests stay right."""

from typing import Any, Final

import pytest

pytestmark = pytest.mark.gpu

# Past 2^31, no multiple of anything.
COUNT: Final = (1 << 31) + (1 << 20) + 3
# Three versions, the arena, and room for comparing.
NEED_BYTES: Final = 3 * 2 * COUNT + COUNT + (4 << 30)
MASK64: Final = (1 << 64) - 1
BOUND: Final = 1 << 30


def codec_called(name: str) -> Any:
    if name == "cuda":
        from rose.kernels.embedded import EmbeddedCodec

        return EmbeddedCodec(0)
    pytest.importorskip("triton")
    from rose.kernels.triton_codec import TritonCodec

    return TritonCodec()


def unsigned(sums: Any) -> tuple[int, int]:
    first, second = sums.tolist()
    return first & MASK64, second & MASK64


@pytest.mark.parametrize("name", ["cuda", "triton"])
def test_more_than_two_to_the_31_elements(name: str) -> None:
    torch = pytest.importorskip("torch")
    from bench.gpu.suite_codec import BLOCK_ELEMENTS, applied
    from bench.gpu.timing import fresh_seed
    from bench.gpu.weights import arena_words_of, two_versions

    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < NEED_BYTES:
        pytest.skip(f"{NEED_BYTES >> 30} GiB of device memory are needed")
    codec = codec_called(name)
    versions = two_versions(COUNT, seed=fresh_seed("large"))
    shadow = versions.old.clone()
    room = {"arena_words": arena_words_of(COUNT)} if name == "cuda" else {}
    packed = codec.delta_pack(versions.new, shadow, block_elements=BLOCK_ELEMENTS, **room)
    assert torch.equal(shadow, versions.new)
    assert int(packed.words.item()) <= packed.arena.numel()
    changed = int(((packed.entries >> 4) & 0xFFFFF).sum().item())
    truly = sum(
        int((new != old).sum().item())
        for new, old in zip(versions.new.split(BOUND), versions.old.split(BOUND), strict=True)
    )
    assert changed == truly
    # The last block is past the border, and so is the last change.
    assert int((packed.entries[-1] >> 4).item()) & 0xFFFFF == int(
        (versions.new[-(COUNT % 65_536) :] != versions.old[-(COUNT % 65_536) :]).sum().item()
    )
    weights = versions.old.clone()
    applied(codec, packed, weights)
    assert torch.equal(weights, versions.new)
    applied(codec, packed, weights, undo=True)
    assert torch.equal(weights, versions.old)
    whole = unsigned(codec.digest(versions.new))
    assert whole == unsigned(packed.digest)
    del weights, shadow, packed


def test_both_twins_digest_the_same() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from bench.gpu.timing import fresh_seed

    torch.manual_seed(fresh_seed("digest"))
    bits = torch.randint(-(1 << 15), 1 << 15, (100_000_007,), dtype=torch.int16, device="cuda")
    one, other = (codec_called(name).digest(bits) for name in ("cuda", "triton"))
    assert unsigned(one) == unsigned(other)
