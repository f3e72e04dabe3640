"""Many tensors packed in one call: the same deltas as one by one, or nothing changed."""

from typing import Any

import numpy as np
import pytest

from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack
from rose.transfer.codec.class_rule import class_rule
from rose.transfer.codec.operations import digest, digests, pack_tiles
from rose.transfer.codec.strat import strat_unpack, wire_pack
from tests.transfer.twins import same

SIZES = (0, 1, 3, 16, 4097, 70_001)


def versions(width: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(width)
    floats = [rng.standard_normal(size).astype(np.float32) for size in SIZES]
    old = [(one.view(np.uint32) >> (32 - width)).astype(f"u{width // 8}") for one in floats]
    new = [one + (rng.random(one.size) < 0.1).astype(one.dtype) for one in old]
    new[3] = old[3].copy()
    return new, old


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [8, 16, 32])
def test_deltas_are_those_of_one_call_per_tensor(width: int, threads: int) -> None:
    new, old = versions(width)
    rule = class_rule(new[-1], old[-1])
    for chosen in (None, rule):
        shadows = [one.copy() for one in old]
        deltas, encoded = pack_tiles(
            new, shadows, base_digests=digests(old), rule=chosen, threads=threads
        )
        assert all(np.array_equal(*pair) for pair in zip(shadows, new, strict=True))
        assert 0 not in deltas
        assert 3 not in deltas  # unchanged
        for at, delta in deltas.items():
            assert same(delta, delta_pack(new[at], old[at].copy()))
            if chosen is not None:
                _, wire = wire_pack(new[at], old[at].copy(), chosen)
                assert encoded.get(at, delta).to_bytes() == wire.to_bytes()
                assert same(strat_unpack(wire, old[at]), delta)
        assert bool(encoded) == (chosen is not None and width > 8)


def test_tensors_with_strides_or_another_dtype_are_packed_too() -> None:
    new, old = np.zeros((6, 4), np.int64), np.zeros((6, 4), np.int64)
    new[2, 1] = 1 << 40
    new[:, 3] = 7  # outside the view
    (delta,) = pack_tiles([new[:, :3]], [old[:, :3]], base_digests=[digest(old[:, :3])])[0].values()
    assert delta.changed == 1
    assert (old[:, 3] == 0).all()
    delta_apply(old[:, :3], delta, undo=True)
    assert not old.any()


def test_shadows_go_back_if_one_tensor_cannot_be_packed() -> None:
    new, old = versions(16)
    shadows = [one.copy() for one in old]
    new[-1] = new[-1][:-1]
    with pytest.raises(InvalidArgument, match="new has 70000 elements and shadow 70001"):
        pack_tiles(new, shadows, base_digests=digests(old))
    assert all(np.array_equal(*pair) for pair in zip(shadows, old, strict=True))


def test_digests_are_those_of_one_call_per_tensor() -> None:
    new, _ = versions(32)
    strided = np.arange(40, dtype=np.uint16)[::3]
    assert digests([*new, strided]) == [digest(one) for one in (*new, strided)]
