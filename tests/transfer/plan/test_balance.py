"""Contributors send about equally much, and few tiles move when a relay leaves."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.plan import RelayNode
from rose.transfer.plan.routes import Rendezvous, contributors

CANDIDATES = st.sets(st.integers(0, 3), min_size=1, max_size=3).map(lambda one: tuple(sorted(one)))


@st.composite
def boards(draw):
    tiles = draw(st.lists(st.tuples(CANDIDATES, st.integers(1, 20)), max_size=7))
    return [one for one, _ in tiles], [weight for _, weight in tiles]


def totals(chosen, weights):
    found = Counter()
    for rank, weight in zip(chosen, weights, strict=True):
        found[rank] += weight
    return found


def test_heavy_tiles_and_those_with_few_candidates_choose_first():
    weights = [1, 1, 1, 1, 4]
    chosen = contributors([(0, 1)] * 5, weights)
    assert totals(chosen, weights) == {0: 4, 1: 4}
    assert contributors([(0, 1), (0,)], [1, 1]) == [1, 0]


@given(boards())
def test_every_tile_is_sent_by_one_that_holds_it_and_always_the_same(board):
    candidates, weights = board
    chosen = contributors(candidates, weights)
    assert all(rank in ranks for rank, ranks in zip(chosen, candidates, strict=True))
    assert chosen == contributors(candidates, weights)


def test_equal_tiles_that_all_hold_are_spread_evenly():
    chosen = contributors([(0, 1, 2)] * 10, [5] * 10)
    assert sorted(Counter(chosen).values()) == [3, 3, 4]


TILES = [b"tile %d" % at for at in range(4000)]


def winners(*relays):
    meeting = Rendezvous(relays)
    return [meeting.landing(tile) for tile in TILES]


@pytest.mark.parametrize("gone", range(4))
def test_only_tiles_of_a_relay_that_left_move(gone):
    relays = [RelayNode(name, "c") for name in "abcd"]
    left = relays.pop(gone)
    before, after = winners(*relays, left), winners(*relays)
    assert left.name in before
    for was, is_now in zip(before, after, strict=True):
        assert was in (left.name, is_now)


def test_relays_win_about_as_many_tiles_each():
    found = Counter(winners(*(RelayNode(name, "c") for name in "abde")))
    shares = [found[name] / len(TILES) for name in "abde"]
    assert shares == pytest.approx([1 / 4] * 4, abs=0.03)
