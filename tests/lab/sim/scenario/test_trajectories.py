"""Columns of trajectories hold what is published of them, fit their context, and are replayed."""

import numpy as np
import numpy.typing as npt
import pytest

from rose_lab.sim.cluster.world import Trajectories
from rose_lab.sim.scenario.distributions import (
    Constant,
    Lognormal,
    LogUniform,
    Mixture,
    Pareto,
    WeightedPart,
)
from rose_lab.sim.scenario.environments import ENVIRONMENTS, Drawn
from rose_lab.sim.scenario.trajectories import (
    drawn_trajectories,
)

CONTEXT = 32_768


def context_tokens_of(trajectories: Trajectories) -> np.ndarray:
    """Return (n,) what the context of each holds at its end."""
    new = trajectories.input_tokens + trajectories.output_tokens
    sums = np.concatenate(([0], np.cumsum(new)))
    return np.diff(sums[trajectories.first_turn])


def input_share(trajectories: Trajectories) -> float:
    """Return the share of prompts in all tokens, each counted once."""
    inputs = int(trajectories.input_tokens.sum())
    return inputs / (inputs + int(trajectories.output_tokens.sum()))


def made(name: str, batch: int, seed: int, context_tokens: int = CONTEXT) -> Trajectories:
    return drawn_trajectories(
        ENVIRONMENTS[name],
        groups=batch // 16,
        group=16,
        context_tokens=context_tokens,
        random=np.random.default_rng(seed),
    )


def durations_s(one: Trajectories, *, token_s: float, prompt_tokens_per_s: float):
    """How long each takes on an engine that nobody else uses."""
    turns = (
        token_s * one.output_tokens + one.input_tokens / prompt_tokens_per_s + one.tool_ms / 1000
    )
    return np.add.reduceat(turns, one.first_turn[:-1])


# Decode steps of 12 and 20 ms, prompts at 20 and 10 thousand tokens a second: 8B and 32B on H800.
PUBLISHED = [("frozen-lake", 256, 0.012, 20_000), ("alfworld", 1024, 0.02, 10_000)]


@pytest.mark.parametrize(("name", "batch", "token_s", "prompt_rate"), PUBLISHED)
def test_what_is_published_of_the_paper_s_trajectories_holds(
    name: str, batch: int, token_s: float, prompt_rate: float
) -> None:
    """77-86 % of tokens are prompts; P75 ends within 30 % of the time; the tail is 5-10 times."""
    p75, tail = [], []
    for seed in range(12):
        one = made(name, batch, seed)
        assert 0.77 <= input_share(one) <= 0.86
        took_s = durations_s(one, token_s=token_s, prompt_tokens_per_s=prompt_rate)
        p75.append(np.quantile(took_s, 0.75) / took_s.max())
        tail.append(took_s.max() / np.median(took_s))
        assert context_tokens_of(one).max() <= CONTEXT
    assert max(p75) <= 0.3
    assert 5 <= np.median(tail) <= 10


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("context_tokens", [2, 31, 1024, 65_536])
def test_a_context_is_never_exceeded_and_every_turn_says_something(
    name: str, context_tokens: int
) -> None:
    one = made(name, 64, 0, context_tokens)
    assert (np.diff(one.first_turn) >= 1).all()
    assert one.first_turn[-1] == one.input_tokens.size == one.output_tokens.size == one.tool_ms.size
    assert one.input_tokens.min() >= 1
    assert one.output_tokens.min() >= 1
    assert (one.tool_ms >= 0).all()
    assert (one.tool_ms[one.first_turn[1:] - 1] == 0).all()
    assert context_tokens_of(one).max() <= context_tokens


def test_equal_seeds_give_equal_columns_and_others_do_not() -> None:
    one, again, other = (made("swe-bench", 64, seed) for seed in (3, 3, 4))
    assert one.output_tokens.tobytes() == again.output_tokens.tobytes()
    assert one.tool_ms.tobytes() == again.tool_ms.tobytes()
    assert one.output_tokens.tobytes() != other.output_tokens.tobytes()


def test_a_group_shares_its_task_and_follows_itself() -> None:
    one = made("frozen-lake", 64, 0)
    assert one.group.tolist() == [group for group in range(4) for _ in range(16)]
    tasks = one.input_tokens[one.first_turn[:-1]].reshape(4, 16)
    assert (tasks == tasks[:, :1]).all()
    assert len(set(tasks[:, 0].tolist())) > 1


def lengths_of(group_share: float) -> npt.NDArray[np.float64]:
    environment = Drawn(
        turns=Lognormal(8.0, 0.6),
        first_input=Constant(10),
        input=Constant(10),
        output=Constant(100),
        tool_s=Constant(0),
        group_share=group_share,
        hardness=0.5,
    )
    one = drawn_trajectories(
        environment,
        groups=200,
        group=8,
        context_tokens=1 << 20,
        random=np.random.default_rng(0),
    )
    return np.diff(one.first_turn).reshape(200, 8).astype(float)


def test_the_group_s_share_is_what_its_members_have_in_common() -> None:
    """The variance between groups over all of it, by hand: 1/8 of it is there by chance."""
    for share in (0.0, 0.5, 1.0):
        logs = np.log(lengths_of(share))
        between = logs.mean(axis=1).var() / logs.var()
        assert between == pytest.approx(share + (1 - share) / 8, abs=0.08)


def test_hard_trajectories_say_more_in_each_turn() -> None:
    environment = Drawn(
        turns=Lognormal(8.0, 0.6),
        first_input=Constant(10),
        input=Constant(10),
        output=Constant(1000),
        tool_s=Constant(0),
        hardness=0.5,
    )
    one = drawn_trajectories(
        environment,
        groups=2000,
        group=1,
        context_tokens=1 << 20,
        random=np.random.default_rng(0),
    )
    output = one.output_tokens[one.first_turn[:-1]]
    assert np.corrcoef(np.log(output), np.diff(one.first_turn))[0, 1] > 0.7
    assert output.mean() == pytest.approx(1000, rel=0.05)


# --- distributions --------------------------------------------------------------------------------

DRAWS = 200_000


@pytest.mark.parametrize(
    ("of", "mean", "p90"),
    [
        (Constant(3), 3.0, 3.0),
        (LogUniform(1, 4), 3 / np.log(4), 4**0.9),
        (Lognormal(2, 0.5), 2 * np.exp(0.125), 2 * np.exp(0.5 * 1.2816)),
        (Lognormal(2, 0.5, least=2, most=2), 2.0, 2.0),
        (Pareto(1, 3), 1.5, 10 ** (1 / 3)),
        (Pareto(1, 1.2, most=2), None, 2.0),
        (Mixture((WeightedPart(0.25, Constant(4)), WeightedPart(0.75, Constant(0)))), 1.0, 4.0),
    ],
    ids=repr,
)
def test_a_distribution_is_what_its_formula_says(of, mean, p90) -> None:
    values = of.draw(np.random.default_rng(0), DRAWS)
    assert values.shape == (DRAWS,)
    assert np.quantile(values, 0.9) == pytest.approx(p90, rel=0.02)
    if mean is not None:
        assert values.mean() == pytest.approx(mean, rel=0.02)
