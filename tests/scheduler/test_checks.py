"""Numbers of callers: what counts is taken in a compact form, and the rest is refused."""

from array import array

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.scheduler import Options, Sampling, VersionRange
from rose.scheduler.checks import TOKEN_MAX, tokens_of
from rose.scheduler.driver_trajectory import DriverTrajectory, Phase
from rose.scheduler.versions import ANY

IDS = [0, 5, 70_000, TOKEN_MAX]
SAMPLING = Sampling(5)


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        tuple(IDS),
        array("Q", IDS),
        np.array(IDS),
        [np.int64(one) for one in IDS],
        torch.tensor(IDS),
        [torch.tensor(one) for one in IDS],
        iter(IDS),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_integers_of_any_type_are_token_ids(ids) -> None:
    assert tokens_of("prompt", ids) == array("I", IDS)


def test_bytes_are_numbers_and_not_memory() -> None:
    assert list(tokens_of("prompt", b"\x01\x02\x03\x04")) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "ids",
    [
        *("12", ["1"], [1.0], [1.5], [-1], [TOKEN_MAX + 1], [1 << 70], [None], None, 7, [[1]]),
        *(np.array([1.0]), np.array([[1, 2], [3, 4]]), torch.tensor([0.5]), [torch.tensor(1.0)]),
    ],
    ids=str,
)
def test_other_values_are_refused_with_the_rule(ids) -> None:
    with pytest.raises(InvalidArgument, match="prompt must be whole numbers from 0 to 4294967295"):
        tokens_of("prompt", ids)


def test_options_that_could_not_be_journaled_are_refused() -> None:
    Options(fields={"stop": ["x"], "guided": {"a": [1, None, 0.5]}})
    for wrong in ({"x": object()}, {"x": "\ud800"}, {"x": 1 << 70}):
        with pytest.raises(InvalidArgument, match="plain values"):
            Options(fields=wrong)
    for name, value in (("top_p", 1.5), ("top_k", -1), ("min_p", "a"), ("logprobs", 1.5)):
        with pytest.raises(InvalidArgument, match=f"Options: {name} must be .*, got {value!r}"):
            Options(**{name: value})


SHORT = st.lists(st.integers(0, 2), max_size=40)


@given(before=SHORT, prompt=SHORT.filter(bool))
def test_a_prompt_is_stored_as_what_it_shares_and_the_rest(before, prompt) -> None:
    state = DriverTrajectory(1, 0, 0, 0, phase=Phase.THINKING, context=tokens_of("x", before))
    asked = state.asked(0, tokens_of("prompt", prompt), SAMPLING, ANY)
    shared = next(
        (place for place, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b),
        min(len(before), len(prompt)),
    )
    assert (asked.kept, len(asked.tail)) == (shared, 4 * (len(prompt) - shared))
    state.ask(asked)
    assert list(state.context) == prompt
    # Repeated, it is the same; with other versions, it is another.
    assert state.asked(0, tokens_of("prompt", prompt), SAMPLING, ANY) is None
    with pytest.raises(InvalidArgument, match="with another prompt, sampling or versions"):
        state.asked(0, tokens_of("prompt", prompt), SAMPLING, VersionRange(at_least=1))
