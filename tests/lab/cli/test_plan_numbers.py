"""Numbers of requests and slabs in a plan."""

import hypothesis.strategies as st
from hypothesis import given

from rose.memory import Reach
from rose_lab.cli.plan_numbers import requests_within, slabs_for
from tests.memory.test_attention import group_of

GROUPS = st.lists(
    st.builds(group_of, st.sampled_from(Reach), st.integers(1, 60), st.sampled_from([1, 4, 7, 16])),
    min_size=1,
    max_size=3,
)


@given(groups=GROUPS, slabs=st.integers(0, 60), tokens=st.integers(1, 80))
def test_requests_are_the_most_that_fit(groups, slabs, tokens) -> None:
    fit = requests_within(groups, slabs=slabs, tokens=tokens, slab_bytes=256)
    assert slabs_for(groups, requests=fit, tokens=tokens, slab_bytes=256) <= slabs
    assert slabs_for(groups, requests=fit + 1, tokens=tokens, slab_bytes=256) > slabs
