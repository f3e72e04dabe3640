"""The CUDA kernels of the codec on a GPU, bit for bit. Each run draws fresh bits and says its seed.

Without torch: a sanitizer runs some of these tests, and memory is allocated buffer by buffer.
"""

from typing import Any, Final

import numpy as np
import pytest

from rose import _core
from tests.gpu import codec_checks as codec
from tests.gpu.codec_checks import LARGE, SMALL
from tests.gpu.twins import CudaTwin, Packed, table_of
from tests.reference import delta as reference

pytestmark = pytest.mark.gpu

# Around a word, a warp, a block of each size, and a prime.
COUNTS: Final = (1, 31, 32, 33, 1000, SMALL - 1, SMALL + 1, LARGE, LARGE + 7, 104_729)


@pytest.fixture(scope="module")
def cuda(device: Any) -> CudaTwin:
    return CudaTwin(device)


@pytest.mark.parametrize("count", COUNTS)
def test_pack_is_bit_for_bit_the_reference(
    cuda: CudaTwin, rng: np.random.Generator, count: int
) -> None:
    codec.check_pack(cuda, rng, count)


@pytest.mark.parametrize("width", [8, 32])
def test_elements_of_other_widths(cuda: CudaTwin, rng: np.random.Generator, width: int) -> None:
    codec.check_width(cuda, rng, width)


@pytest.mark.parametrize("skew_bytes", [2, 4, 6, 8, 14])
def test_any_address_of_an_element_will_do(
    cuda: CudaTwin, rng: np.random.Generator, skew_bytes: int
) -> None:
    codec.check_any_address(cuda, rng, skew_bytes)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.2, 0.9])
def test_millions_of_elements_pack_as_the_core_packs_them(
    cuda: CudaTwin, rng: np.random.Generator, share: float
) -> None:
    codec.check_millions(cuda, rng, share)


def test_index_and_seed_are_those_of_the_tensor(cuda: CudaTwin, rng: np.random.Generator) -> None:
    codec.check_index_and_seed(cuda, rng)


def test_deferred_blocks_leave_their_shadow_and_come_with_the_next_pack(
    cuda: CudaTwin, rng: np.random.Generator
) -> None:
    codec.check_deferred(cuda, rng)


def test_an_arena_without_room_defers_everything(cuda: CudaTwin, rng: np.random.Generator) -> None:
    codec.check_no_room(cuda, rng)


@pytest.mark.parametrize("count", COUNTS)
def test_apply_is_bit_for_bit_the_reference(
    cuda: CudaTwin, rng: np.random.Generator, count: int
) -> None:
    codec.check_apply(cuda, rng, count)


@pytest.mark.parametrize("fields", codec.CORRUPT, ids=str)
def test_a_corrupt_block_leaves_its_weights_alone(
    cuda: CudaTwin, rng: np.random.Generator, fields: dict[str, int]
) -> None:
    codec.check_corrupt(cuda, rng, fields)


def test_flipped_bits_never_reach_another_block(cuda: CudaTwin, rng: np.random.Generator) -> None:
    codec.check_flipped(cuda, rng)


@pytest.mark.parametrize("count", [1, 33, 1000, SMALL + 1])
def test_topk_is_bit_for_bit_the_reference(
    cuda: CudaTwin, rng: np.random.Generator, count: int
) -> None:
    codec.check_topk(cuda, rng, count)


def test_millions_have_the_threshold_of_the_core(cuda: CudaTwin, rng: np.random.Generator) -> None:
    codec.check_threshold_of_millions(cuda, rng)


@pytest.mark.parametrize("count", [1, 3, 4, 1001, 65_537])
def test_digest_is_bit_for_bit_the_reference(
    cuda: CudaTwin, rng: np.random.Generator, count: int
) -> None:
    codec.check_digest(cuda, rng, count)


def test_the_digest_of_parts_adds_up(cuda: CudaTwin, rng: np.random.Generator) -> None:
    codec.check_digest_of_parts(cuda, rng)


def embedded() -> Any:
    pytest.importorskip("torch")
    from rose.kernels.embedded import EmbeddedCodec

    return EmbeddedCodec(0)


def on_gpu(array: Any) -> Any:
    import torch

    return torch.from_numpy(array.view(f"i{array.itemsize}")).cuda()


def on_gpu_table(delta: Any) -> tuple[Any, Any, Any]:
    return tuple(on_gpu(one) for one in table_of(delta))  # type: ignore[return-value]


def gathered(blocks: Any, like: Any) -> reference.Delta:
    """Fetch what the embedded codec packed."""
    packed = Packed(
        like.count,
        like.block_elements,
        blocks.entries.cpu().numpy().view(np.uint64),
        blocks.offsets.cpu().numpy().view(np.uint64),
        blocks.arena.cpu().numpy().view(np.uint32),
        int(blocks.words),
        np.empty(0, f"u{like.width // 8}"),
        (0, 0),
    )
    return packed.gathered()


def test_part_of_a_tensor_is_taken_where_it_lies(rng: np.random.Generator) -> None:
    codec_of_gpu = embedded()
    new, old = codec.two_versions(rng, 40 * 33 * 100, share=0.05)
    whole, shadow = (on_gpu(one).view(40, 33, 100) for one in (new, old))
    part, target = (one[2:, :, 3:90].transpose(0, 1) for one in (whole, shadow))
    flat_new, flat_old = (
        one.contiguous().view(-1).cpu().numpy().view(np.uint16) for one in (part, target)
    )
    wanted = reference.pack(flat_new, flat_old.copy(), block_elements=SMALL)
    packed = codec_of_gpu.delta_pack(part, target, block_elements=SMALL)
    assert gathered(packed, wanted) == wanted
    assert bool((part == target).all())
    bad = codec_of_gpu.delta_apply(target, *on_gpu_table(wanted), block_elements=SMALL, undo=True)
    assert int(bad) == -1
    assert (shadow.view(-1).cpu().numpy().view(np.uint16) == old).all()


def test_a_launcher_names_the_address_it_refuses(device: Any) -> None:
    from rose.errors import InvalidArgument

    launcher = _core.DeviceCodec.create(device)
    with pytest.raises(InvalidArgument, match="bits is null"):
        launcher.digest(bits=0, width=16, count=4, sums=256, stream=0)
    with pytest.raises(InvalidArgument, match="multiple of 8"):
        launcher.digest(bits=256, width=16, count=4, sums=260, stream=0)
