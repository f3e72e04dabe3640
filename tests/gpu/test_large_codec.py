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


class TritonSteps:
    """The Triton codec with the calls of the embedded one that do not fetch anything."""

    def pack_blocks(self, new: Any, shadow: Any, _: Any, *, block_elements: int, **__: Any) -> Any:
        from rose.kernels.delta_pack import delta_pack
        from rose.kernels.embedded import PackedBlocks

        made = delta_pack(
            new[0],
            shadow[0],
            block_elements=block_elements,
            threshold=0,
            ages=None,
            age_limit=255,
        )
        shadow[0].copy_(made.shadow)
        import torch

        row = torch.cat([made.entries.view(torch.int32), made.payload])
        sizes = (made.entries >> 44) & 0xFFFFF
        ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return PackedBlocks(row, ends, self.digests([made.shadow]).view(-1))

    def apply_blocks(
        self, weights: Any, tables: Any, block_elements: Any, *, undo: bool = False
    ) -> Any:
        from rose.kernels.delta_apply import delta_apply

        delta_apply(weights[0], *tables[0], block_elements=block_elements[0], undo=undo)
        return None, None

    def digests(self, tensors: Any) -> Any:
        from rose.kernels.triton_codec import TritonCodec

        return TritonCodec().digests(tensors)


def codec_called(name: str) -> Any:
    if name == "cuda":
        from rose.kernels.embedded import EmbeddedCodec

        return EmbeddedCodec(0)
    pytest.importorskip("triton")
    return TritonSteps()


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
    packed = codec.pack_blocks(
        [versions.new],
        [shadow],
        codec.digests([shadow]),
        block_elements=BLOCK_ELEMENTS,
        arena_words=arena_words_of(COUNT),
    )
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
    whole = unsigned(codec.digests([versions.new])[0])
    assert whole == unsigned(packed.digest)
    del weights, shadow, packed


def test_both_twins_digest_the_same() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from bench.gpu.timing import fresh_seed

    torch.manual_seed(fresh_seed("digest"))
    bits = torch.randint(-(1 << 15), 1 << 15, (100_000_007,), dtype=torch.int16, device="cuda")
    one, other = (codec_called(name).digests([bits])[0] for name in ("cuda", "triton"))
    assert unsigned(one) == unsigned(other)
