"""Tensors in slabs: each has one place, none overlap, and runs are of neighbours."""

from hypothesis import given
from hypothesis import strategies as st

from rose.memory.bins import ALIGN_BYTES, find_runs, pack_bins

SLAB = 4096
SIZES = st.lists(
    st.one_of(st.integers(0, 3 * SLAB), st.sampled_from([1, 256, SLAB - 1, SLAB, SLAB + 1])),
    max_size=40,
)


@given(SIZES)
def test_every_tensor_has_one_aligned_place_and_none_overlap(sizes: list[int]) -> None:
    bins = pack_bins(sizes, SLAB)
    placed = [place for one in bins for place in one.places]
    assert sorted(place.tensor for place in placed) == list(range(len(sizes)))
    for one in bins:
        end = 0
        for place in sorted(one.places, key=lambda place: place.offset):
            assert place.offset % ALIGN_BYTES == 0
            assert place.offset >= end
            end = place.offset + sizes[place.tensor]
        assert end <= one.slabs * SLAB


@given(SIZES)
def test_a_bin_is_no_longer_than_its_largest_tensor_and_at_most_one_is_half_empty(
    sizes: list[int],
) -> None:
    bins = pack_bins(sizes, SLAB)
    used = []
    for one in bins:
        largest = max(sizes[place.tensor] for place in one.places)
        assert one.slabs == max(1, -(-largest // SLAB))
        aligned = [-(-sizes[place.tensor] // ALIGN_BYTES) * ALIGN_BYTES for place in one.places]
        used.append((sum(aligned), one.slabs))
    # First fit: two bins that were each at most half full would have been one.
    assert sum(one_slab == 1 and bytes_ <= SLAB // 2 for bytes_, one_slab in used) <= 1


LENGTHS = st.lists(st.integers(1, 5), max_size=8)


@given(LENGTHS, st.frozensets(st.integers(0, 40)))
def test_runs_are_disjoint_neighbours_out_of_what_there_is(
    lengths: list[int], slabs: frozenset[int]
) -> None:
    runs = find_runs(lengths, slabs)
    if runs is None:
        assert lengths
        return
    assert [len(run) for run in runs] == lengths
    taken = [slab for run in runs for slab in run]
    assert len(taken) == len(set(taken))
    assert set(taken) <= slabs


@given(st.integers(0, 12), st.frozensets(st.integers(0, 40), max_size=12))
def test_single_slabs_are_found_exactly_when_there_are_enough(
    count: int, slabs: frozenset[int]
) -> None:
    assert (find_runs([1] * count, slabs) is None) == (count > len(slabs))


def test_a_long_run_is_not_broken_up_for_short_ones() -> None:
    assert find_runs([1, 1, 3], [0, 1, 5, 6, 7]) == [range(1), range(1, 2), range(5, 8)]
    assert find_runs([2, 2], [0, 1, 2]) is None
    assert find_runs([2], [0, 2, 4]) is None
