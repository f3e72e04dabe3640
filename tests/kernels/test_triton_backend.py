"""The back end of a GPU over the Triton twins, in their interpreter: what it passes, they take."""

from typing import Any

import numpy as np
import pytest

from tests.kernels.interpreter import Child
from tests.vectors.delta_v2 import changed, weights

COUNT = 400


def packed_and_applied(new: Any, old: Any) -> dict[str, Any]:
    """Run in the child: what the back end of a GPU says, beside what that of the host says."""
    import torch

    from rose.kernels.triton_codec import TritonCodec
    from rose.transfer.codec.backend import HostBackend
    from rose.transfer.codec.gpu import GpuBackend

    def tensor_of(bits: Any) -> Any:
        return torch.from_numpy(bits.view(f"i{bits.itemsize}"))

    gpu, host = GpuBackend(TritonCodec()), HostBackend(isa=None)
    options: dict[str, Any] = {"block_elements": 65_536, "threshold": 0}
    shadow, held = old.copy(), old.copy()
    expected = host.delta_pack(new, old.copy(), **options)
    delta = gpu.delta_pack(tensor_of(new), tensor_of(shadow), **options)
    states = [held.copy()]
    for undo in (False, True, False):
        gpu.delta_apply(tensor_of(held), delta, undo=undo, verify=True)
        states.append(held.copy())
    positions, values = gpu.topk_unpack(tensor_of(old), delta)
    return {
        "is_same": delta.to_bytes() == expected.to_bytes(),
        "shadow": shadow,
        "states": states,
        "unpacked": (positions, values),
    }


@pytest.mark.parametrize("width", [8, 16, 32])
def test_the_back_end_says_what_the_host_says(child: Child, width: int) -> None:
    new, old = changed(np.random.default_rng(width), COUNT, density=0.1, steps=0.7, width=width)
    said = child.run(packed_and_applied, new, old)
    assert said["is_same"]
    assert said["shadow"].tolist() == new.tolist()
    expected = [old, new, old, new]
    assert [one.tolist() for one in said["states"]] == [one.tolist() for one in expected]
    positions, values = said["unpacked"]
    assert values.dtype == new.dtype
    assert positions.tolist() == np.flatnonzero(new != old).tolist()
    assert values.tolist() == new[positions].tolist()


def packed_by_age(new: Any, old: Any, ages: Any) -> list[Any]:
    """Run in the child: top-k with ages, by both."""
    import torch

    from rose.kernels.triton_codec import TritonCodec
    from rose.transfer.codec.backend import HostBackend
    from rose.transfer.codec.gpu import GpuBackend

    found = []
    for backend in (GpuBackend(TritonCodec()), HostBackend(isa=None)):
        shadow, counts = old.copy(), ages.copy()
        operands = [new, shadow, counts]
        if isinstance(backend, GpuBackend):
            operands = [torch.from_numpy(one.view(f"i{one.itemsize}")) for one in operands]
        fresh, moved, aged = operands
        more: dict[str, Any] = {"ages": aged, "age_limit": 4}
        threshold = backend.topk_threshold(fresh, moved, budget=20, **more)
        more |= {"threshold": threshold, "block_elements": 65_536}
        delta = backend.delta_pack(fresh, moved, **more)
        found.append((threshold, delta.to_bytes(), shadow.tolist(), counts.tolist()))
    return found


def test_topk_with_ages_is_that_of_the_host(child: Child) -> None:
    rng = np.random.default_rng(6)
    new, old = weights(rng, COUNT)
    ages = rng.integers(0, 5, COUNT, dtype=np.uint8)
    one, other = child.run(packed_by_age, new, old, ages)
    assert one == other


def left_by_a_pack_that_fails(new: Any, old: Any, ages: Any) -> tuple[Any, Any]:
    """Run in the child: no memory is left for the last step of a pack by age."""
    import torch

    from rose.kernels import triton_codec

    def no_memory(_: Any) -> Any:
        raise MemoryError

    found, triton_codec.digest = triton_codec.digest, no_memory
    try:
        fresh, shadow, aged = (
            torch.from_numpy(one.view(f"i{one.itemsize}")) for one in (new, old, ages)
        )
        triton_codec.TritonCodec().delta_pack(
            fresh, shadow, block_elements=65_536, threshold=0x3C00, ages=aged
        )
    except MemoryError:
        return old, ages
    finally:
        triton_codec.digest = found
    raise AssertionError


def test_a_pack_that_fails_changes_nothing(child: Child) -> None:
    new, old = weights(np.random.default_rng(6), COUNT)
    ages = (np.arange(COUNT) % 256).astype(np.uint8)
    shadow, left = child.run(left_by_a_pack_that_fails, new, old, ages)
    assert (shadow == old).all()
    assert (left == ages).all()
