"""Cells that no region divides, and their parts of limited size."""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.plan import Region
from rose.transfer.plan.refinement import cells, slabs
from tests.reference.plan import elements_of, holders_of, least_boxes
from tests.transfer.plan.models import run_boxes
from tests.transfer.plan.random_maps import SHAPES, boxes


@st.composite
def arrangements(draw):
    shape = draw(SHAPES)
    return shape, draw(boxes(shape))


@given(arrangements())
def test_every_element_is_in_one_cell_and_no_region_has_a_part_of_one(arrangement):
    shape, regions = arrangement
    held_by = holders_of(shape, regions)
    seen = []
    for cell in cells(shape, regions):
        for element in elements_of(cell.region):
            assert held_by[element] == frozenset(cell.held_by)
            seen.append(element)
    assert sorted(seen) == sorted(held_by)


@given(arrangements())
def test_cells_that_are_one_box_together_are_held_by_different_regions(arrangement):
    found = cells(*arrangement)
    for one, other in product(found, found):
        if one is not other and one.held_by == other.held_by:
            both = {*elements_of(one.region), *elements_of(other.region)}
            spans = (max(column) - min(column) + 1 for column in zip(*both, strict=True))
            assert prod(spans) != len(both)


@given(st.integers(1, 40), st.data())
def test_a_row_has_no_more_cells_than_runs(count, data):
    regions = data.draw(boxes((count,)))
    held_by = holders_of((count,), regions)
    runs = 1 + sum(held_by[at,] != held_by[at + 1,] for at in range(count - 1))
    assert len(cells((count,), regions)) == runs


def shares(size, parts):
    return [(part * size // parts, (part + 1) * size // parts) for part in range(parts)]


def rows(shape, parts):
    return [Region((a, 0), (b - a, shape[1])) for a, b in shares(shape[0], parts) if a < b]


def columns(shape, parts):
    return [Region((0, a), (shape[0], b - a)) for a, b in shares(shape[1], parts) if a < b]


def flat(shape, parts):
    ends = shares(prod(shape), parts)
    return [Region(*box) for first, behind in ends for box in run_boxes(shape, first, behind)]


LAYOUTS = [
    lambda shape: rows(shape, 2),
    lambda shape: rows(shape, 4),
    lambda shape: columns(shape, 2),
    lambda shape: columns(shape, 4),
    lambda shape: flat(shape, 2),
    lambda shape: flat(shape, 3),
]


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (2, 6)])
@pytest.mark.parametrize("one", range(len(LAYOUTS)))
@pytest.mark.parametrize("other", range(len(LAYOUTS)))
def test_real_layouts_have_the_least_cells(shape, one, other):
    regions = [*LAYOUTS[one](shape), *LAYOUTS[other](shape)]
    assert len(cells(shape, regions)) == least_boxes(holders_of(shape, regions))


def test_flat_shards_cut_three_boxes_each_and_not_a_grid():
    shape, world = (64, 60), 7
    assert len(cells(shape, flat(shape, world))) <= 3 * world


def test_cut_divides_as_few_regions_as_possible():
    """Cut in the middle of the first dimension, the long region would be two cells of five."""
    long, flat_one = Region((0, 1, 1), (2, 1, 1)), Region((0, 0, 0), (1, 2, 1))
    assert len(cells((2, 2, 2), [long, flat_one])) == 4


def test_a_tensor_without_elements_has_no_cell_and_a_scalar_has_one():
    assert cells((0, 3), []) == ()
    assert [cell.region for cell in cells((), [Region((), ())])] == [Region((), ())]


@given(SHAPES, st.integers(1, 50), st.data())
def test_slabs_divide_a_box_into_few_long_parts_of_nearly_one_size(shape, most, data):
    offset = tuple(data.draw(st.integers(0, 5)) for _ in shape)
    box = Region(offset, shape)
    parts = list(slabs(box, most))
    assert [one for part in parts for one in elements_of(part)] == list(elements_of(box))
    assert all(part.count <= most for part in parts)
    assert len(parts) <= 2 * box.count / most + 1
    cut = {d for part in parts for d, size in enumerate(part.shape) if size < shape[d]}
    last = max(cut, default=0)  # dimensions before it are single indices, those behind it whole
    assert all(size == 1 for part in parts for size in part.shape[:last])
    lengths = {part.shape[last] for part in parts if part.shape}
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
