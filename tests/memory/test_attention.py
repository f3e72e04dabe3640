"""Attention groups: what a window keeps, against a walk over every step of a request."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rose.errors import InvalidArgument
from rose.memory import AttentionGroup, KVGeometry, Reach


def most_blocks(group: AttentionGroup, tokens: int, step_tokens: int) -> int:
    """Return the most blocks in use at once, whichever steps a request of `tokens` is run in."""
    block, most = group.geometry.block_tokens, 0
    for end in range(1, tokens + 1):
        for first in range(max(0, end - step_tokens), end):  # the step computes first .. end - 1
            match group.reach:
                case Reach.FULL:
                    kept = 0
                case Reach.SLIDING:
                    kept = max(0, first - group.window_tokens + 1)
                case Reach.CHUNKED:
                    kept = first // group.window_tokens * group.window_tokens
            most = max(most, (end - 1) // block - kept // block + 1)
    return most


def group_of(reach: Reach, window: int, block_tokens: int) -> AttentionGroup:
    geometry = KVGeometry(1, block_tokens, 4)
    return AttentionGroup(reach, geometry, None if reach is Reach.FULL else window)


@given(
    reach=st.sampled_from(Reach),
    window=st.integers(1, 20),
    block_tokens=st.integers(1, 8),
    tokens=st.integers(0, 50),
    step_tokens=st.integers(1, 10),
)
def test_no_step_holds_more_blocks_than_the_bound(
    reach, window, block_tokens, tokens, step_tokens
) -> None:
    group = group_of(reach, window, block_tokens)
    bound = group.blocks_for(tokens, step_tokens=step_tokens)
    assert most_blocks(group, tokens, step_tokens) <= bound
    assert bound <= group.geometry.blocks_for(tokens)


@given(
    window=st.integers(1, 20),
    block_tokens=st.integers(1, 8),
    step_tokens=st.integers(1, 10),
    more=st.integers(0, 20),
)
def test_bound_of_a_long_request_is_reached(window, block_tokens, step_tokens, more) -> None:
    group = group_of(Reach.SLIDING, window, block_tokens)
    tokens = window + step_tokens + 2 * block_tokens + more
    assert group.blocks_for(tokens, step_tokens=step_tokens) == most_blocks(
        group, tokens, step_tokens
    )


@pytest.mark.parametrize(
    ("reach", "window"), [(Reach.FULL, 4), (Reach.SLIDING, None), (Reach.CHUNKED, 0)]
)
def test_group_without_a_meaning_is_refused(reach, window) -> None:
    with pytest.raises(InvalidArgument):
        AttentionGroup(reach, KVGeometry(1, 16, 64), window)
