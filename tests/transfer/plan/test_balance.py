"""Contributors: nobody sends much more than must be; landings: few move when a relay does."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.plan import Relay
from rose.transfer.plan.balance import contributors
from rose.transfer.plan.routes import Rendezvous
from tests.reference.plan import least_load

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


def knockout(ranks):
    """Return pairs of equals: whoever is first wins, and has as many tiles as there are rounds.

    The least possible is one tile each, if the losers take them.
    """
    pairs = []
    while len(ranks) > 1:
        pairs += zip(ranks[::2], ranks[1::2], strict=True)
        ranks = ranks[::2]
    return pairs


def test_a_winner_passes_tiles_on_to_losers():
    candidates = knockout(range(32))
    found = totals(contributors(candidates, [1] * 31), [1] * 31)
    assert max(found.values()) <= 2


def test_tiles_are_passed_on_over_others():
    """Rank 0 may pass on only to winners, who have as much, and they to losers, who have less."""
    candidates = [pair for first in (1, 5, 9) for pair in knockout(range(first, first + 4))]
    candidates += [(0, 1), (0, 5), (0, 9)]
    weights = [1] * len(candidates)
    assert least_load(candidates, weights) == 1
    assert max(totals(contributors(candidates, weights), weights).values()) <= 2


def test_heavy_tiles_and_those_with_few_candidates_choose_first():
    weights = [1, 1, 1, 1, 4]
    chosen = contributors([(0, 1)] * 5, weights)
    assert totals(chosen, weights) == {0: 4, 1: 4}
    assert contributors([(0, 1), (0,)], [1, 1]) == [1, 0]


@given(boards())
def test_the_largest_load_is_at_most_the_least_possible_and_one_tile(board):
    candidates, weights = board
    chosen = contributors(candidates, weights)
    assert all(rank in ranks for rank, ranks in zip(chosen, candidates, strict=True))
    most = max(totals(chosen, weights).values(), default=0)
    assert most <= least_load(candidates, weights) + max(weights, default=0)
    assert chosen == contributors(candidates, weights)


@given(st.integers(1, 12), st.data())
def test_a_ladder_of_choices_is_levelled(rungs, data):
    """Greedy alone fails here: each tile goes to rank i or i + 1, and the first ranks are full."""
    weights = [1] * (3 * rungs)
    candidates = [(at // 3, at // 3 + 1) for at in range(3 * rungs)]
    order = data.draw(st.permutations(range(3 * rungs)))
    chosen = contributors([candidates[at] for at in order], weights)
    most = max(totals(chosen, weights).values())
    assert most <= matched(candidates, rungs + 1) + 1


def matched(candidates, ranks):
    """Return the least largest load of unit tiles: the most crowded run of ranks decides it."""
    best = 0
    for low in range(ranks):
        for high in range(low, ranks):
            inside = sum(low <= min(one) and max(one) <= high for one in candidates)
            best = max(best, -(-inside // (high - low + 1)))
    return best


def test_equal_tiles_that_all_hold_are_spread_evenly():
    chosen = contributors([(0, 1, 2)] * 10, [5] * 10)
    assert sorted(Counter(chosen).values()) == [3, 3, 4]


def test_no_tiles_have_no_contributors():
    assert contributors([], []) == []


TILES = [b"tile %d" % at for at in range(4000)]


def winners(*relays):
    meeting = Rendezvous(relays)
    return [meeting.landing(tile) for tile in TILES]


@pytest.mark.parametrize("gone", range(4))
def test_only_tiles_of_a_relay_that_left_move(gone):
    relays = [Relay(name, "c") for name in "abcd"]
    left = relays.pop(gone)
    before, after = winners(*relays, left), winners(*relays)
    assert left.name in before
    for was, is_now in zip(before, after, strict=True):
        assert was in (left.name, is_now)


def test_relays_win_about_as_many_tiles_each():
    found = Counter(winners(*(Relay(name, "c") for name in "abde")))
    shares = [found[name] / len(TILES) for name in "abde"]
    assert shares == pytest.approx([1 / 4] * 4, abs=0.03)


def test_nobody_wins_where_nobody_is():
    assert Rendezvous([]).landing(b"tile") is None
