"""The way from tensors and deltas to the kernels of a GPU and back, with a stand-in for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta
from rose.transfer.codec.backend import Backend, HostBackend
from tests.reference import delta as reference
from tests.transfer.twins import same
from tests.vectors.delta_v2 import changed, weights

torch = pytest.importorskip("torch")

WIDE, DENSE = 65_536, 16_384
WIDTHS = (8, 16, 32)


@pytest.fixture
def codec() -> Any:
    from tests.transfer.reference_codec import ReferenceCodec

    return ReferenceCodec()


@pytest.fixture
def gpu(codec: Any) -> Backend:
    from rose.transfer.codec.gpu import GpuBackend

    return GpuBackend(codec)


HOST = HostBackend(isa=None)


def tensor_of(bits: Any) -> Any:
    """Return a tensor of the CPU, as the back end of a GPU takes it: signed and shared."""
    return torch.from_numpy(bits.view(f"i{bits.itemsize}"))


def versions(width: int, count: int = 2 * DENSE + 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(width)
    return changed(rng, count, density=0.01, steps=0.8, width=width)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_pack_is_fetched_in_the_order_of_its_table(gpu: Backend, width: int) -> None:
    new, old = versions(width)
    shadow, held = old.copy(), old.copy()
    delta = gpu.delta_pack(tensor_of(new), tensor_of(shadow), block_elements=DENSE, threshold=0)
    expected = HOST.delta_pack(new, held, block_elements=DENSE, threshold=0)
    assert same(delta, expected)
    assert (delta.width, delta.base_digest) == (width, reference.digest(old))
    assert shadow.tolist() == new.tolist()


@pytest.mark.parametrize("width", WIDTHS)
def test_apply_and_undo_send_what_was_packed(gpu: Backend, width: int) -> None:
    new, old = versions(width)
    delta = HOST.delta_pack(new, old.copy(), block_elements=DENSE, threshold=0)
    held = old.copy()
    gpu.delta_apply(tensor_of(held), delta, undo=False)
    assert held.tolist() == new.tolist()
    gpu.delta_apply(tensor_of(held), delta, undo=True)
    assert held.tolist() == old.tolist()


def test_a_shadow_that_shares_memory_with_new_is_refused(gpu: Backend, codec: Any) -> None:
    whole = torch.zeros(8, 8, dtype=torch.int16)
    gpu.delta_pack(whole[:, :4], whole[:, 4:], block_elements=DENSE, threshold=0)
    codec.calls.clear()
    with pytest.raises(InvalidArgument, match="new and shadow overlap in memory"):
        gpu.delta_pack(whole[:, :4], whole[:, 3:7], block_elements=DENSE, threshold=0)
    assert codec.calls == []


# ---- what is refused before the device is asked


def corrupted(delta: Delta) -> Delta:
    payload = delta.payload.copy()
    payload[:] = 0xFFFFFFFF
    return Delta(delta.count, DENSE, 16, delta.entries, payload, delta.base_digest, delta.digest)


def test_a_delta_that_is_not_sound_never_reaches_the_device(gpu: Backend, codec: Any) -> None:
    new, old = versions(16)
    delta = corrupted(HOST.delta_pack(new, old.copy(), block_elements=DENSE, threshold=0))
    held = old.copy()
    with pytest.raises(CorruptData, match="block 0"):
        gpu.delta_apply(tensor_of(held), delta, undo=False)
    with pytest.raises(CorruptData, match="block 0"):
        gpu.topk_unpack(tensor_of(held), delta)
    assert codec.calls == []
    assert held.tolist() == old.tolist()


@pytest.mark.parametrize("other", [np.zeros(8, np.uint16), np.zeros(9, np.uint8)])
def test_a_delta_of_other_elements_is_refused(gpu: Backend, codec: Any, other: Any) -> None:
    new, old = versions(16, count=9)
    delta = HOST.delta_pack(new, old, block_elements=DENSE, threshold=0)
    with pytest.raises(InvalidArgument, match="the delta is for 9 elements of 16 bits, and"):
        gpu.delta_apply(tensor_of(other), delta, undo=False)
    assert codec.calls == []


@pytest.mark.parametrize("undo", [False, True])
def test_verify_looks_at_the_weights_before_it_changes_them(
    gpu: Backend, codec: Any, *, undo: bool
) -> None:
    new, old = versions(32, count=1000)
    delta = HOST.delta_pack(new, old.copy(), block_elements=DENSE, threshold=0)
    right, wrong = (new, old) if undo else (old, new)
    held = wrong.copy()
    with pytest.raises(CorruptData, match=r"the weights are not the (base|result) of the delta"):
        gpu.delta_apply(tensor_of(held), delta, undo=undo, verify=True)
    assert codec.calls == ["digest"]
    assert held.tolist() == wrong.tolist()
    held = right.copy()
    gpu.delta_apply(tensor_of(held), delta, undo=undo, verify=True)
    assert held.tolist() == wrong.tolist()


# ---- top-k


@pytest.mark.parametrize("age_limit", [None, 4])
def test_topk_is_that_of_the_host(gpu: Backend, age_limit: int | None) -> None:
    new, old = weights(np.random.default_rng(1), 500)
    ages = np.random.default_rng(2).integers(0, 5, 500, dtype=np.uint8)
    other_ages = None if age_limit is None else ages.copy()
    sent = None if age_limit is None else tensor_of(ages)
    more = {"age_limit": age_limit or 255}
    threshold = gpu.topk_threshold(tensor_of(new), tensor_of(old), budget=100, ages=sent, **more)
    assert threshold == HOST.topk_threshold(new, old, budget=100, ages=other_ages, **more)
    options = {"block_elements": WIDE, "threshold": threshold, **more}
    shadow, held = old.copy(), old.copy()
    delta = gpu.delta_pack(tensor_of(new), tensor_of(shadow), ages=sent, **options)
    assert same(delta, HOST.delta_pack(new, held, ages=other_ages, **options))
    assert shadow.tolist() == held.tolist()
    assert other_ages is None or ages.tolist() == other_ages.tolist()
    positions, values = gpu.topk_unpack(tensor_of(old), delta)
    assert values.tolist() == new[positions].tolist()
    assert positions.tolist() == np.flatnonzero(held != old).tolist()


def test_a_digest_is_that_of_the_host(gpu: Backend) -> None:
    new, _ = versions(16, count=40)
    assert gpu.digest(tensor_of(new)) == HOST.digest(new)


# ---- the stream


def test_everything_is_queued_on_the_stream_of_the_caller(
    codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rose.transfer.codec import gpu as subject

    entered: list[Any] = []
    inside: list[bool] = []

    @contextmanager
    def on_stream(stream: Any, device: Any) -> Iterator[None]:
        entered.append((stream, str(device)))
        inside.append(True)
        yield
        inside.pop()

    monkeypatch.setattr(subject, "on_stream", on_stream)
    for name in ("delta_pack", "delta_apply", "digest", "topk_threshold", "topk_unpack"):
        inner = getattr(codec, name)

        def called(*args: Any, inner: Any = inner, **options: Any) -> Any:
            assert inside, "launched on another stream"
            return inner(*args, **options)

        monkeypatch.setattr(codec, name, called)
    backend = subject.GpuBackend(codec, stream=4711)
    new, old = weights(np.random.default_rng(1), 100)
    fresh, shadow = tensor_of(new), tensor_of(old.copy())
    options: dict[str, int] = {"block_elements": WIDE, "threshold": 0}
    delta = backend.delta_pack(fresh, shadow, **options)
    backend.delta_apply(shadow, delta, undo=True)
    backend.delta_apply(shadow, delta, undo=False, verify=True)
    backend.topk_threshold(fresh, shadow, budget=3)
    backend.topk_unpack(tensor_of(old), delta)
    backend.digest(fresh)
    assert set(entered) == {(4711, "cpu")}
