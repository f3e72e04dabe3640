"""The calculator's parser agrees with Python's on every sum, and answers everything else."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.demo.environments.arithmetic import DEPTH_MAX, LENGTH_MAX, VALUE_MAX, Malformed, evaluate
from tests.reference import arithmetic as reference

SUMS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", " + ", "* "]), inner).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
    ),
    max_leaves=6,
)


@given(SUMS)
def test_a_sum_has_the_value_python_gives_it(text: str) -> None:
    value = evaluate(text)
    if isinstance(value, Malformed):  # only for being out of the limits
        assert re.match("longer|the value is too large|more than", value.reason)
    else:
        assert value == reference.evaluate(text)


@given(st.text() | st.text("0123456789+-*() ", max_size=80))
def test_no_text_raises_and_only_sums_have_a_value(text: str) -> None:
    value = evaluate(text)
    if not isinstance(value, Malformed):
        assert abs(value) <= VALUE_MAX
        # Python forbids leading zeros; here 007 is 7.
        assert value == reference.evaluate(re.sub(r"(?<![0-9])0+(?=[0-9])", "", text))


@pytest.mark.parametrize(
    "text",
    ["", " ", "1+", "*1", "1 2", "(1", "1)", "()", "2**3", "1/2", "1.5", "x", "٣", "1+()", "1e3"],
)
def test_what_is_no_sum_is_malformed(text: str) -> None:
    assert isinstance(evaluate(text), Malformed)


def test_the_limits_are_where_they_are_said_to_be() -> None:
    assert evaluate("1" * LENGTH_MAX) == Malformed("the value is too large")
    assert isinstance(evaluate("1" + " " * LENGTH_MAX), Malformed)
    assert evaluate(str(VALUE_MAX)) == VALUE_MAX
    assert isinstance(evaluate(f"{VALUE_MAX}+1"), Malformed)
    assert isinstance(evaluate("99999*99999*0"), Malformed)
    assert evaluate("(" * DEPTH_MAX + "1" + ")" * DEPTH_MAX) == 1
    assert isinstance(evaluate("(" * (DEPTH_MAX + 1) + "1" + ")" * (DEPTH_MAX + 1)), Malformed)
    assert evaluate("-" * (LENGTH_MAX - 1) + "1") == -1
