"""Tensors of a GPU from any library, on any stream: the codec's public functions on the device."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Contributor, Delta, ShardViews, Tiles, delta_apply, delta_pack
from rose.transfer.codec.operations import delta_check, digest, topk_pack, topk_unpack
from rose.transfer.publishing.contributor import PackedPart

pytestmark = pytest.mark.gpu

DENSE: Final = 16_384
COUNT: Final = 3 * DENSE + 5
DTYPES: Final = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")


@pytest.fixture(autouse=True)
def torch() -> Any:
    return pytest.importorskip("torch")


def two_versions(rng: np.random.Generator, width: int, count: int = COUNT) -> tuple[Any, Any]:
    """Return new and old bits on the host."""
    old = rng.integers(0, 1 << width, count).astype(f"u{width // 8}")
    new = old.copy()
    at = rng.choice(count, count // 50, replace=False)
    new[at] += rng.integers(1, 9, len(at)).astype(new.dtype)
    return new, old


def on_gpu(bits: Any) -> Any:
    import torch

    return torch.from_numpy(bits.view(f"i{bits.itemsize}")).cuda()


def on_host(tensor: Any) -> Any:
    signed = tensor.cpu().numpy()
    return signed.view(f"u{signed.itemsize}")


def same(one: Delta, other: Delta) -> bool:
    return one.to_bytes() == other.to_bytes()


@contextmanager
def nobody_waits() -> Iterator[None]:
    """Let torch raise where this thread would wait for the device or a stream."""
    import torch

    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


# ---- dtypes and boxes


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_packed_as_on_the_host(
    torch: Any, rng: np.random.Generator, dtype: str
) -> None:
    kind = getattr(torch, dtype)
    new, old = two_versions(rng, 8 * kind.itemsize)
    fresh, shadow, held = (on_gpu(one).view(kind) for one in (new, old, old))
    expected_shadow = old.copy()
    expected = delta_pack(new, expected_shadow)
    delta = delta_pack(fresh, shadow)
    assert same(delta, expected)
    assert on_host(shadow.view(torch.uint8)).tobytes() == new.tobytes()
    delta_apply(held, delta, verify=True)
    assert digest(held) == delta.digest
    delta_apply(held, delta, undo=True, verify=True)
    assert digest(held) == delta.base_digest
    with pytest.raises(CorruptData):
        delta_apply(held, delta, undo=True, verify=True)


BOXES: Final[dict[str, Callable[[Any], Any]]] = {
    "columns": lambda one: one[:, :, :, 3:17],
    "rows": lambda one: one[1:3],
    "inner": lambda one: one[1:, 2:8, 1:5, 1::3],
    "turned": lambda one: one.permute(3, 1, 0, 2),
    "turned box": lambda one: one.permute(2, 0, 3, 1)[1:4, :, 2:],
}


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("width", [8, 16, 32])
def test_a_box_is_changed_where_it_lies(
    torch: Any, rng: np.random.Generator, name: str, width: int
) -> None:
    shape = (4, 9, 31, 20)
    new, old = two_versions(rng, width, int(np.prod(shape)))
    view = BOXES[name]
    whole, fresh = on_gpu(old).view(shape), on_gpu(new).view(shape)
    row_new, row_old = (on_host(view(one).contiguous()).flatten() for one in (fresh, whole))
    delta = delta_pack(view(fresh), view(whole), block_elements=DENSE)
    assert same(delta, delta_pack(row_new, row_old.copy(), block_elements=DENSE))
    expected = on_gpu(old).view(shape)
    view(expected).copy_(view(fresh))
    assert torch.equal(whole, expected)
    delta_apply(view(whole), delta, undo=True)
    assert torch.equal(whole, on_gpu(old).view(shape))
    assert digest(view(whole)) == digest(row_old)


def test_an_expanded_tensor_is_not_written_to(torch: Any) -> None:
    row = torch.zeros(8, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(InvalidArgument, match="shadow has elements that may share memory"):
        delta_pack(torch.zeros(3, 8, dtype=torch.bfloat16, device="cuda"), row.expand(3, 8))


# ---- other libraries


@pytest.mark.parametrize("width", [8, 16, 32])
def test_arrays_of_cupy_are_changed_where_they_lie(rng: np.random.Generator, width: int) -> None:
    cupy = pytest.importorskip("cupy")
    new, old = two_versions(rng, width)
    fresh, shadow, held = cupy.asarray(new), cupy.asarray(old), cupy.asarray(old)
    delta = delta_pack(fresh, shadow)
    assert same(delta, delta_pack(new, old.copy()))
    assert (shadow.get() == new).all()
    delta_apply(held, delta)
    assert digest(held) == delta.digest
    assert (held.get() == new).all()
    delta_apply(held, delta, undo=True)
    cupy.cuda.Device().synchronize()
    assert (held.get() == old).all()


def test_a_stream_of_cupy_is_passed_by_its_handle(rng: np.random.Generator) -> None:
    cupy = pytest.importorskip("cupy")
    new, old = two_versions(rng, 16)
    delta = delta_pack(new, old.copy())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        held = cupy.asarray(old)
        delta_apply(held, delta, stream=stream.ptr)
        after = held.get(stream=stream)
    stream.synchronize()
    assert (after == new).all()


@pytest.mark.parametrize("undo", [False, True])
def test_unsound_delta_is_refused_by_the_device_and_changes_nothing(
    torch: Any, rng: np.random.Generator, *, undo: bool
) -> None:
    new, old = two_versions(rng, 16)
    delta = delta_pack(new, old.copy(), block_elements=DENSE)
    payload = delta.payload.copy()
    payload[-1] ^= 1 << 31
    with pytest.raises(CorruptData) as refusal:
        delta_check(replace(delta, payload=payload))
    before = new if undo else old
    held = on_gpu(before)
    with pytest.raises(CorruptData, match=re.escape(str(refusal.value))):
        delta_apply(held, replace(delta, payload=payload), undo=undo)
    assert (on_host(held) == before).all()


def test_model_is_packed_and_applied_as_its_tensors_are(
    torch: Any, rng: np.random.Generator
) -> None:
    pairs = {
        str(at): two_versions(rng, 8 << at % 3, 1 + int(rng.integers(COUNT))) for at in range(30)
    }
    fresh, shadow, held = (
        {name: on_gpu(pair[which]) for name, pair in pairs.items()} for which in (0, 1, 1)
    )
    deltas = delta_pack(fresh, shadow, block_elements=DENSE)
    for name, (new, old) in pairs.items():
        assert same(deltas[name], delta_pack(new, old, block_elements=DENSE))
        assert torch.equal(shadow[name], fresh[name])
    before = {name: one.clone() for name, one in held.items()}
    payload = deltas["29"].payload.copy()
    payload[-1] = 0xFFFFFFFF
    with pytest.raises(CorruptData, match=r"weights\['29'\]: block"):
        delta_apply(held, {**deltas, "29": replace(deltas["29"], payload=payload)})
    assert all(torch.equal(held[name], before[name]) for name in held)
    delta_apply(held, deltas, verify=True)
    assert all(torch.equal(held[name], fresh[name]) for name in held)


def test_contributor_packs_tiles_of_a_gpu_as_those_of_the_host(
    rng: np.random.Generator,
) -> None:
    new, old = two_versions(rng, 16, 40_000)
    tiles = Tiles.of(len(new), 1024)
    parts = []
    for put in (np.copy, on_gpu):
        fresh, shadow = put(new), put(old)
        views, held = (
            ShardViews({tile.index: (row[tile.where],) for tile in tiles})
            for row in (fresh, shadow)
        )
        contributor, part = Contributor(held, tiles), PackedPart()
        contributor.pack(views, part)
        parts.append(part)
        assert contributor.take_back(part)
    assert parts[0].frames == parts[1].frames
    assert parts[0].chunks == parts[1].chunks


# ---- streams


def test_an_apply_of_a_checked_delta_is_queued_and_nobody_waits(
    torch: Any, rng: np.random.Generator
) -> None:
    new, old = two_versions(rng, 16)
    delta = delta_pack(new, old.copy())
    delta_check(delta)
    delta = replace(delta, is_checked=True)
    stream = torch.cuda.Stream(priority=0)  # the lowest there is
    held = on_gpu(old)
    delta_apply(on_gpu(old), delta, stream=stream)  # kernels are loaded with the first
    torch.cuda.synchronize()
    with nobody_waits():
        delta_apply(held, delta, stream=stream)
    stream.synchronize()
    assert (on_host(held) == new).all()


def test_only_the_stream_that_was_given_is_waited_for(torch: Any, rng: np.random.Generator) -> None:
    new, old = two_versions(rng, 16)
    stream, busy = torch.cuda.Stream(), torch.cuda.Stream()
    fresh, base = on_gpu(new), on_gpu(old)

    def all_of_it() -> Delta:
        shadow, held = (on_gpu_on(stream, old) for _ in range(2))
        delta = delta_pack(fresh, shadow, stream=stream)
        delta_apply(held, delta, stream=stream.cuda_stream, verify=True)
        assert digest(held, stream=stream) == delta.digest
        positions, _ = topk_unpack(delta, base, stream=stream)
        assert len(positions) == delta.changed
        assert topk_pack(fresh, shadow, budget=3, stream=stream).changed == 0
        return delta

    warm = all_of_it()  # kernels are loaded, and memory is taken, with the first
    torch.cuda.synchronize()
    ended = torch.cuda.Event()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(8_000_000_000)  # seconds: what follows takes milliseconds
        ended.record()
    delta = all_of_it()
    assert not ended.query(), "something waited for a stream that it was not given"
    ended.synchronize()
    assert same(delta, warm)


def on_gpu_on(stream: Any, bits: Any) -> Any:
    import torch

    with torch.cuda.stream(stream):
        return on_gpu(bits)


@pytest.mark.parametrize("wrong", ["main", 1.5])
def test_what_is_no_stream_is_named(rng: np.random.Generator, wrong: Any) -> None:
    new, old = two_versions(rng, 16)
    with pytest.raises(InvalidArgument, match="stream must be a handle"):
        delta_pack(on_gpu(new), on_gpu(old), stream=wrong)
