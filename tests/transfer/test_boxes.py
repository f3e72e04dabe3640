"""Boxes of memory, compared with a list of all their bytes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.codec.box import Box


@st.composite
def boxes(draw: st.DrawFn) -> Any:
    """Draw a slice, turned, of a memory of 96 elements."""
    memory = np.arange(96, dtype=np.uint16)
    view = memory.reshape(draw(st.sampled_from([(96,), (8, 12), (4, 6, 4), (2, 3, 4, 4)])))
    slices = []
    for size in view.shape:
        first = draw(st.integers(0, size - 1))
        last = draw(st.integers(first + 1, size))
        slices.append(slice(first, last, draw(st.integers(1, 3))))
    part = view[tuple(slices)]
    return memory, part.transpose(draw(st.permutations(range(part.ndim))))


@given(boxes(), boxes())
def test_boxes_meet_where_they_share_an_element(one: Any, other: Any) -> None:
    memory, part = one
    moved = np.ndarray(  # the other box, laid over the memory of the first
        other[1].shape,
        np.uint16,
        memory,
        other[1].ctypes.data - other[0].ctypes.data,
        other[1].strides,
    )
    shared = set(part.ravel().tolist()) & set(moved.ravel().tolist())
    assert Box.of(part).meets(Box.of(moved)) == bool(shared)
    is_same = part.ravel().tolist() == moved.ravel().tolist()
    assert (Box.of(part) == Box.of(moved)) == is_same
    assert not Box.of(part).may_repeat
    assert Box.of(part).last == int(part.max()) * 2 + 2 + memory.ctypes.data


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), max_size=3),
)
def test_view_that_repeats_an_element_is_recognised(dims: Any) -> None:
    memory = np.arange(200, dtype=np.uint16)
    shape, steps = tuple(size for size, _ in dims), tuple(2 * step for _, step in dims)
    view = np.lib.stride_tricks.as_strided(memory, shape, steps)
    seen = view.ravel().tolist()
    if len(set(seen)) < len(seen):
        assert Box.of(view).may_repeat


def test_search_that_takes_too_long_counts_as_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = np.zeros((40, 40), np.uint16)
    one, other = Box.of(memory[:, :20]), Box.of(memory[:, 20:])
    assert not one.meets(other)

    def too_hard(*_: Any, **__: Any) -> bool:
        raise np.exceptions.TooHardError

    monkeypatch.setattr(np, "shares_memory", too_hard)
    assert one.meets(other)
    assert not one.meets(Box.of(memory.copy()))
