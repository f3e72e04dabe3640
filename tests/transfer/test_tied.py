"""Names of one storage collapse to one; what shares memory otherwise is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack
from rose.transfer.codec.box import Box
from rose.transfer.codec.tied import distinct

SHARES = "share memory and are not the same tensor"


@pytest.fixture
def matrix() -> Any:
    return np.arange(48, dtype=np.uint16).reshape(6, 8)


def test_tied_names_collapse_to_the_first(matrix: Any) -> None:
    other = np.zeros(4, np.uint16)
    named = {"embed": matrix, "norm": other, "head": matrix[:], "flat": matrix.reshape(2, 24)}
    found = distinct(named)
    assert list(found.tensors) == ["embed", "norm"]
    assert found.tensors["embed"] is matrix
    assert found.ties == {"head": "embed", "flat": "embed"}


def test_one_box_in_two_shapes_is_tied(matrix: Any) -> None:
    columns = matrix[:, 2:6]
    found = distinct({"w": columns, "heads": columns.reshape(6, 2, 2), "one": columns[None]})
    assert np.shares_memory(columns, columns.reshape(6, 2, 2))
    assert found.ties == {"heads": "w", "one": "w"}


def test_a_delta_of_tied_weights_is_applied_once(matrix: Any) -> None:
    fresh = matrix + np.uint16(5)
    delta = delta_pack(fresh, matrix.copy())
    for weights in distinct({"embed": matrix, "head": matrix.view()}).tensors.values():
        delta_apply(weights, delta)
    assert matrix.tolist() == fresh.tolist()


@pytest.mark.parametrize(
    "other",
    [
        lambda one: one.T,
        lambda one: one[1:],
        lambda one: one[:, 3:5],
        lambda one: one.view(np.uint8),
        lambda one: one.view(np.uint32)[::2],
    ],
    ids=["transpose", "rows", "columns", "bytes", "wider"],
)
def test_another_view_of_the_same_memory_is_refused_by_name(matrix: Any, other: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"(b and a|a and b) {SHARES}"):
        distinct({"a": matrix, "b": other(matrix)})


def test_parts_that_lie_between_each_other_are_distinct(matrix: Any) -> None:
    parts = {"q": matrix[:, :3], "k": matrix[:, 3:5], "v": matrix[:, 5:], "all": matrix.copy()}
    found = distinct(parts)
    assert (list(found.tensors), found.ties) == (list(parts), {})
    with pytest.raises(InvalidArgument, match=f"v and o {SHARES}"):
        distinct({**parts, "o": matrix[5:, 7]})


def test_all_that_meet_an_earlier_one_are_found(matrix: Any) -> None:
    row = matrix.reshape(-1)
    # The long one is still open when the last begins, whatever begins and ends between them.
    with pytest.raises(InvalidArgument, match=f"long and last {SHARES}"):
        distinct({"last": row[40::4], "long": row[::4], "short": row[1:2]})


def test_a_tensor_without_elements_is_tied_to_none(matrix: Any) -> None:
    named = {"a": matrix, "none": matrix[:0], "nothing": matrix[:, 8:], "empty": np.empty(0, "u1")}
    found = distinct(named)
    assert (list(found.tensors), found.ties) == (list(named), {})


def test_what_is_no_tensor_is_named() -> None:
    with pytest.raises(InvalidArgument, match="head is a list"):
        distinct({"head": [1]})


def test_parameters_of_torch_are_looked_at_by_their_memory() -> None:
    torch = pytest.importorskip("torch")
    embed = torch.nn.Parameter(torch.zeros(8, 4))
    head = torch.nn.Parameter(torch.zeros(8, 4))
    head.data = embed.data
    found = distinct({"embed": embed, "head": head, "norm": torch.zeros(4), "ghost": embed[:0]})
    assert found.ties == {"head": "embed"}
    assert list(found.tensors) == ["embed", "norm", "ghost"]
    with pytest.raises(InvalidArgument, match=SHARES):
        distinct({"embed": embed, "head": head.t()})


# ---- boxes, against a list of all bytes


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
def test_what_repeats_an_element_is_never_taken_for_a_box_that_does_not(dims: Any) -> None:
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
