"""The updates that a log keeps lead to the newest version within its limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.transfer.manifest import UpdateKey
from rose.transfer.publishing.shelf import Edge, Limits, connected, path, to_forget


def edge(base_n: int, n: int, nbytes: int = 1) -> Edge:
    return Edge(UpdateKey(n, base_n), nbytes)


def ways(edges: list[Edge], start_n: int, end_n: int) -> list[list[Edge]]:
    """List all ways, one by one: the plain reference of `path`."""
    if start_n == end_n:
        return [[]]
    return [
        [one, *rest]
        for one in edges
        if one.key.base_n == start_n
        for rest in ways(edges, one.key.n, end_n)
    ]


@st.composite
def some_edges(draw: st.DrawFn) -> list[Edge]:
    pairs = draw(st.sets(st.tuples(st.integers(0, 7), st.integers(1, 8)), max_size=14))
    return [edge(base, n, draw(st.integers(0, 9))) for base, n in sorted(pairs) if base < n]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Edge], int]:
    """Draw what a log had after any number of versions: edges, merges that were made, and gaps."""
    newest = draw(st.integers(1, 40))
    singles = [edge(n - 1, n, draw(st.integers(1, 50))) for n in range(1, newest + 1)]
    merges = [
        edge(n - (1 << level), n, draw(st.integers(1, 90)))
        for level in range(1, 6)
        for n in range(1 << level, newest + 1, 1 << level)
    ]
    lost = (
        draw(st.sets(st.sampled_from(singles[:-1] + merges), max_size=8)) if newest > 1 else set()
    )
    return [one for one in singles + merges if one not in lost], newest


@given(some_edges(), st.integers(0, 8), st.integers(0, 8))
def test_path_is_the_cheapest_way(edges: list[Edge], start_n: int, end_n: int) -> None:
    def cost(way: list[Edge]) -> tuple[int, int]:
        return sum(one.nbytes for one in way), len(way)

    found = path(edges, start_n, end_n)
    every = ways(edges, start_n, end_n) if start_n <= end_n else []
    if not every:
        assert found is None
    else:
        assert found in every
        assert cost(found) == min(map(cost, every))


@given(some_edges(), st.integers(0, 8))
def test_connected_links_are_those_with_a_way_on(edges: list[Edge], newest_n: int) -> None:
    expected = [one for one in edges if ways(edges, one.key.n, newest_n)]
    assert sorted(one.key for one in connected(edges, newest_n)) == sorted(
        one.key for one in expected
    )


@given(
    histories(), st.integers(1, 20), st.integers(0, 4), st.integers(1, 600), st.sampled_from([0, 3])
)
def test_kept_updates_lead_to_the_newest_within_the_limits(
    history: tuple[list[Edge], int],
    versions_max: int,
    merged_max: int,
    bytes_max: int,
    opening: int,
) -> None:
    edges, newest_n = history
    limits = Limits(versions_max, merged_max, bytes_max)
    gone = to_forget(edges, limits, newest_n=newest_n, opening_n=opening)
    kept = [one for one in edges if one.key not in gone]
    assert len(kept) + len(gone) == len(edges)
    assert sum(one.nbytes for one in kept) <= bytes_max or len(kept) == 1
    assert any(one.key.n == newest_n for one in kept)  # everybody is to hear of it
    assert sum(one.length == 1 for one in kept) <= versions_max
    for one in kept:
        assert path(kept, one.key.base_n, newest_n) is not None
    # Nothing more is forgotten the next time: the choice is stable.
    assert to_forget(kept, limits, newest_n=newest_n, opening_n=opening) == []


@given(histories(), st.integers(1, 400))
def test_path_from_the_opening_is_trimmed_last(history: tuple[list[Edge], int], slack: int) -> None:
    edges, newest_n = history
    limits = Limits(newest_n, newest_n, sum(one.nbytes for one in edges))
    way = path(edges, 0, newest_n)
    if way is None:
        return
    need = sum(one.nbytes for one in way)
    tight = Limits(newest_n, newest_n, need + slack)
    gone = to_forget(edges, tight, newest_n=newest_n, opening_n=0)
    assert not {one.key for one in way} & set(gone)
    assert to_forget(way, limits, newest_n=newest_n, opening_n=0) == []


def test_for_room_the_oldest_go_first_and_the_way_to_the_newest_version_never() -> None:
    edges = [edge(n - 1, n, 10) for n in range(2, 7)]
    gone = to_forget(edges, Limits(bytes_max=25), newest_n=6, opening_n=None)
    assert [key.n for key in gone] == [2, 3, 4]
    gone = to_forget(edges, Limits(bytes_max=9), newest_n=6, opening_n=None)
    assert [key.n for key in gone] == [2, 3, 4, 5]


def test_merged_deltas_outlive_the_versions_that_they_lead_over() -> None:
    edges = [edge(n - 1, n) for n in range(1, 33)]
    edges += [edge(n - 8, n) for n in range(8, 33, 8)] + [edge(n - 2, n) for n in range(2, 33, 2)]
    gone = set(to_forget(edges, Limits(4, 2, 1 << 30), newest_n=32, opening_n=0))
    kept = sorted((one.key.base_n, one.key.n) for one in edges if one.key not in gone)
    # Inside the window all; before it the last two merges of each length.
    assert kept == sorted(
        [(n - 1, n) for n in range(29, 33)]
        + [(28, 30), (30, 32), (24, 26), (26, 28)]
        + [(16, 24), (24, 32)]
    )


@pytest.mark.parametrize("limits", [(0, 8, 1), (1, 8, 0), (1, -1, 1)])
def test_limits_that_keep_nothing_are_refused(limits: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument):
        Limits(*limits)
