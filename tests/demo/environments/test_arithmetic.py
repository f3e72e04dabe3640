"""The calculator's parser agrees with Python's on every sum, and answers everything else."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.demo.environments.calculator import LENGTH_MAX, VALUE_MAX, evaluate
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
    value = reference.evaluate(text)
    if len(text) <= LENGTH_MAX and abs(value) <= VALUE_MAX:
        assert evaluate(text) == value
    else:
        with pytest.raises(ValueError, match=r"longer|the value is too large"):
            evaluate(text)


@given(st.text() | st.text("0123456789+-*() ", max_size=80))
def test_only_sums_have_a_value(text: str) -> None:
    try:
        value = evaluate(text)
    except ValueError:
        return
    assert abs(value) <= VALUE_MAX
    # Python forbids leading zeros; here 007 is 7.
    assert value == reference.evaluate(re.sub(r"(?<![0-9])0+(?=[0-9])", "", text))


@pytest.mark.parametrize(
    "text",
    ["", " ", "1+", "*1", "1 2", "(1", "1)", "()", "2**3", "1/2", "1.5", "x", "٣", "1+()", "1e3"],
)
def test_what_is_no_sum_is_malformed(text: str) -> None:
    with pytest.raises(ValueError, match=r"that is no sum|unexpected"):
        evaluate(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1" * LENGTH_MAX, "the value is too large"),
        (f"{VALUE_MAX}+1", "the value is too large"),
        ("1" + " " * LENGTH_MAX, "longer than 64"),
    ],
)
def test_what_is_beyond_the_limits_has_no_value(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        evaluate(text)


def test_the_limits_are_where_they_are_said_to_be() -> None:
    assert evaluate(str(VALUE_MAX)) == VALUE_MAX
    assert evaluate("(" * 31 + "1" + ")" * 31) == 1
    assert evaluate("-" * (LENGTH_MAX - 1) + "1") == -1
