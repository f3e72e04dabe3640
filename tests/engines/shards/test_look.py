"""Looks at tensors: the boxes of whatever views do to one, in its own coordinates."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.engines.shards.look import BOXES_MAX, Look, boxes_of

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


def look_of(tensor: torch.Tensor) -> Look:
    return Look(tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


def step(draw: st.DrawFn, one: torch.Tensor) -> torch.Tensor:
    """Look at a tensor in some way that copies nothing."""
    kinds = [
        "narrow",
        "stepped",
        "permute",
        "select",
        "split",
        "merge",
        "square",
        "diagonal",
        "windows",
    ]
    kind = draw(st.sampled_from(kinds))
    at = draw(st.integers(0, max(0, one.dim() - 1)))
    if one.dim() == 0 or 0 in one.shape:
        return one
    if kind == "narrow":
        first = draw(st.integers(0, one.shape[at] - 1))
        return one.narrow(at, first, draw(st.integers(1, one.shape[at] - first)))
    if kind == "stepped":
        return one.transpose(0, at)[:: draw(st.integers(2, 3))].transpose(0, at)
    if kind == "permute":
        return one.permute(draw(st.permutations(range(one.dim()))))
    if kind == "select":
        return one.select(at, draw(st.integers(0, one.shape[at] - 1)))
    if kind == "split":
        factors = [size for size in range(1, one.shape[at] + 1) if one.shape[at] % size == 0]
        return one.unflatten(at, (draw(st.sampled_from(factors)), -1))
    if kind == "windows" and one.dim() < 4:
        size = draw(st.integers(1, one.shape[at]))
        return one.unfold(at, size, draw(st.integers(1, 2)))
    if kind == "diagonal":
        return one.diagonal() if one.dim() > 1 and one.dim() < 4 else one
    try:
        return one.flatten() if kind == "merge" else one.view(-1, 1).squeeze(1)
    except RuntimeError:
        return one


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], torch.Tensor]:
    shape = draw(SHAPES)
    whole = torch.arange(math.prod(shape)).view(shape)
    seen = whole
    for _ in range(draw(st.integers(0, 5))):
        after = step(draw, seen)
        if after.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
            seen = after
    return shape, seen


@given(views(), st.data())
def test_boxes_put_every_element_where_the_copy_puts_it(case, data) -> None:
    shape, seen = case
    order = data.draw(st.permutations(range(seen.dim())))
    room = torch.full((seen.numel() * 2 + 3,), -1)
    back = [order.index(at) for at in range(seen.dim())]
    held = room[3:][: seen.numel()].view([seen.shape[at] for at in order]).permute(back)
    held.copy_(seen)
    whole = torch.arange(math.prod(shape)).view(shape)
    ours = torch.full_like(room, -1)
    elements = 0
    boxes = boxes_of(shape, look_of(seen), look_of(held))
    if boxes is None:
        assert seen.numel() > BOXES_MAX
        return
    for region, offset, strides in boxes:
        box = whole[
            tuple(slice(at, at + n) for at, n in zip(region.offset, region.shape, strict=True))
        ]
        assert tuple(box.shape) == region.shape
        ours.as_strided(region.shape, strides, offset).copy_(box)
        elements += region.count
    assert torch.equal(ours, room)
    assert elements == seen.numel()


def test_rows_that_go_on_are_one_box_though_both_sides_look_at_them_as_heads() -> None:
    whole = torch.arange(8 * 4 * 6).view(8 * 4, 6)
    (box,) = boxes_of(whole.shape, look_of(whole.view(8, 4, 6)[2:5]), look_of(torch.empty(3, 4, 6)))
    assert (box.region.offset, box.region.shape, box.strides) == ((8, 0), (12, 6), (6, 1))


def test_end_of_a_row_and_start_of_the_next_are_three_boxes() -> None:
    whole = torch.arange(5 * 10).view(5, 10)
    seen = whole.view(-1)[7:45]
    boxes = boxes_of(whole.shape, look_of(seen), look_of(torch.empty(38)))
    assert [(box.region.offset, box.region.shape, box.offset) for box in boxes] == [
        ((0, 7), (1, 3), 0),
        ((1, 0), (3, 10), 3),
        ((4, 0), (1, 5), 33),
    ]


def test_look_that_is_too_fine_is_not_followed() -> None:
    whole = torch.arange(4 * BOXES_MAX)
    fine = whole[::2]
    assert boxes_of(whole.shape, look_of(fine), look_of(torch.empty(fine.shape))) is None
    either = whole[1:-1].view(-1, 2)
    assert boxes_of(whole.shape, look_of(either), look_of(either.t().contiguous().t())) is None
    few = whole[: 2 * BOXES_MAX : 2]
    assert len(boxes_of(whole.shape, look_of(few), look_of(torch.empty(few.shape)))) == BOXES_MAX


def test_scalar_is_a_box_without_dimensions() -> None:
    (box,) = boxes_of((), Look(0, (), ()), Look(7, (), ()))
    assert (box.region.offset, box.region.shape, box.offset, box.strides) == ((), (), 7, ())
