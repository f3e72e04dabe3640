"""The loss and its gradient are those of the plain reference, whatever is clipped or masked."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose_lab.demo.rl.policy_gradient import (
    clipped_loss,
    group_advantages,
    microbatches,
    teaches,
)
from tests.lab.demo.rl.micro import trajectory
from tests.reference import policy_gradient as reference

REWARDS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 3)), min_size=1, max_size=12
)


@given(REWARDS)
def test_advantages_are_deviations_within_the_group(pairs) -> None:
    rewards, groups = zip(*pairs, strict=True)
    found = group_advantages(rewards, groups)
    assert found == pytest.approx(reference.advantages(rewards, groups))
    for group in set(groups):
        assert sum(a for a, g in zip(found, groups, strict=True) if g == group) == pytest.approx(
            0.0, abs=1e-9
        )


def test_equal_rewards_have_no_advantage_even_when_rounded() -> None:
    assert group_advantages([0.1 + 0.2, 0.3, 0.3], [1, 1, 1]) == (0.0, 0.0, 0.0)
    assert group_advantages([0.7], [1]) == (0.0,)
    assert not teaches([0.1 + 0.2, 0.3, 0.3])
    assert teaches([0.0, 1.0])


def test_a_wild_logprob_gives_a_finite_loss() -> None:
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    loss = clipped_loss(logprobs, torch.tensor([-1e30, -1e30]), torch.tensor([1.0, -1.0]), clip=0.2)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logprobs.grad).all()


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([-1.0, 0.0, 2.0])), max_size=12),
    st.integers(1, 60),
)
def test_every_generated_token_is_learned_once(plays, tokens_max: int) -> None:
    """Numbers stand in for tokens and logprobs, so each can be found again."""
    trajectories = [
        trajectory(
            n, [10 * n + i for i in range(length)], reward=0.0, logprobs=[-float(n)] * length
        )
        for n, (length, _) in enumerate(plays)
    ]
    advantages = [advantage for _, advantage in plays]
    found = []
    for batch in microbatches(trajectories, advantages, tokens_max=tokens_max):
        rows, width = batch.tokens.shape
        assert rows == 1 or rows * width <= tokens_max
        assert int(batch.is_token.sum()) == sum(
            len(one.tokens)
            for one in trajectories
            if set(one.tokens[4:]) & set(batch.targets.tolist())
        )
        found += zip(
            batch.targets.tolist(), batch.behaviour.tolist(), batch.advantages.tolist(), strict=True
        )
    want = [
        (10 * n + i, -float(n), advantage)
        for n, (length, advantage) in enumerate(plays)
        for i in range(length)
        if advantage
    ]
    assert sorted(found) == sorted(want)
