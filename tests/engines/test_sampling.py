"""Sampling by counter: against a plain twin, and the laws that let a turn move."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.engines.transformers import Sampling
from rose.engines.transformers.sampling import Rows, _signed, choose, gumbel_noise, row_key
from rose.errors import InvalidArgument
from tests.reference import sampling as reference

SEEDS = st.integers(-(2**70), 2**70)


def keys_of(rows: list[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor([_signed(row_key(seed, position)) for seed, position in rows])


@given(seed=SEEDS, position=st.integers(0, 2**40), size=st.sampled_from([1, 2, 31, 128, 257]))
def test_noise_is_that_of_the_plain_twin(seed: int, position: int, size: int) -> None:
    noise = gumbel_noise(keys_of([(seed, position)]), size)[0].tolist()
    expected = [reference.noise(seed, position, token) for token in range(size)]
    # Far below 0 float32 is coarse; a token with such noise never wins against another.
    for one, other in zip(noise, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-4) if other > -2 else one < -1.9


@st.composite
def parameters(draw) -> Sampling:
    return Sampling(
        seed=draw(SEEDS),
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.5, 1e-9])),
        top_k=draw(st.sampled_from([0, 1, 2, 40, 1000])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.9, 1.0])),
        logprobs=draw(st.sampled_from([0, 1, 5, 20])),
        withheld=draw(st.sampled_from([(), (0,), (1, 16)])),
        withheld_until=draw(st.sampled_from([0, 2000])),
    )


@given(data=st.data(), rows=st.lists(parameters(), max_size=9), size=st.sampled_from([17, 128]))
def test_tokens_and_logprobs_are_those_of_the_plain_twin(data, rows, size: int) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    logits = 4 * torch.randn(len(rows), size, generator=generator)
    positions = [data.draw(st.integers(0, 5000)) for _ in rows]
    made = Rows(rows, positions, torch.device("cpu"))
    tokens, logprobs, top = choose(logits.clone(), made)
    for row, (one, position) in enumerate(zip(rows, positions, strict=True)):
        token, expected = reference.choose(
            logits[row].tolist(),
            seed=one.seed,
            position=position,
            temperature=one.temperature,
            top_p=one.top_p,
            top_k=one.top_k,
            min_p=one.min_p,
            withheld=one.withheld if position < one.withheld_until else (),
        )
        assert int(tokens[row]) == token
        assert float(logprobs[row]) == pytest.approx(expected[token], abs=1e-4)
        if one.logprobs:
            count = min(one.logprobs, size)
            assert top[0][row][:count].tolist() == pytest.approx(
                sorted(expected, reverse=True)[:count], abs=1e-4
            )
            found = [expected[at] for at in top[1][row][:count].tolist()]
            assert found == pytest.approx(top[0][row][:count].tolist(), abs=1e-4)


@given(rows=st.lists(parameters(), min_size=2, max_size=9))
def test_a_row_with_any_parameters_is_the_same_alone_and_in_any_batch(rows) -> None:
    logits = torch.randn(len(rows), 64, generator=torch.Generator().manual_seed(len(rows)))
    cpu = torch.device("cpu")
    tokens, logprobs, _ = choose(logits.clone(), Rows(rows, [7] * len(rows), cpu))
    for row, one in enumerate(rows):
        token, logprob, _ = choose(logits[row : row + 1].clone(), Rows([one], [7], cpu))
        assert int(token) == int(tokens[row])
        assert float(logprob) == float(logprobs[row])


@given(rows=st.lists(st.tuples(SEEDS, st.integers(0, 2**20)), min_size=2, max_size=20))
def test_a_row_is_the_same_alone_and_in_any_batch(rows: list[tuple[int, int]]) -> None:
    together = gumbel_noise(keys_of(rows), 128)
    for row, place in enumerate(rows):
        assert torch.equal(gumbel_noise(keys_of([place]), 128)[0], together[row])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", wrong) for wrong in (-0.1, math.nan, math.inf)),
        *(("top_p", wrong) for wrong in (0.0, 1.1, math.nan)),
        *(("min_p", wrong) for wrong in (-0.1, 1.1, math.nan)),
        ("top_k", -1),
        ("logprobs", 21),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Sampling(seed=1, **{name: value})
