"""Sampling by counter: against a plain twin, and the laws that let a turn move."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.engines.transformers import Sampling
from rose.engines.transformers.sampling import _signed, choose, gumbel_noise, row_key
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


@given(data=st.data(), rows=st.integers(1, 9), size=st.sampled_from([1, 2, 17, 128]))
def test_tokens_and_logprobs_are_those_of_the_plain_twin(data, rows: int, size: int) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    logits = 4 * torch.randn(rows, size, generator=generator)
    places = [(data.draw(SEEDS), data.draw(st.integers(0, 5000))) for _ in range(rows)]
    temperatures = [data.draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])) for _ in range(rows)]
    tokens, logprobs = choose(logits, keys_of(places), torch.tensor(temperatures))
    for row, ((seed, position), temperature) in enumerate(zip(places, temperatures, strict=True)):
        token, logprob = reference.choose(
            logits[row].tolist(), seed=seed, position=position, temperature=temperature
        )
        assert int(tokens[row]) == token
        assert float(logprobs[row]) == pytest.approx(logprob, abs=1e-4)


@given(rows=st.lists(st.tuples(SEEDS, st.integers(0, 2**20)), min_size=2, max_size=20))
def test_a_row_is_the_same_alone_and_in_any_batch(rows: list[tuple[int, int]]) -> None:
    together = gumbel_noise(keys_of(rows), 128)
    for row, place in enumerate(rows):
        assert torch.equal(gumbel_noise(keys_of([place]), 128)[0], together[row])


@pytest.mark.parametrize("temperature", [-0.1, math.nan, math.inf])
def test_temperature_without_a_softmax_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidArgument, match="temperature"):
        Sampling(seed=1, temperature=temperature)
