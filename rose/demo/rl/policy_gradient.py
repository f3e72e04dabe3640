"""The loss: rewards compared within a group, and a clipped ratio for every token that was said.

Source: PPO (arXiv 1707.06347) with the group as its baseline, as in GRPO (arXiv 2402.03300).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from rose.errors import InvalidArgument

# Rewards nearer to each other than this are equal: sums of shaped rewards differ by rounding, and
# dividing by such a spread would make noise the lesson.
_SPREAD_MIN: Final = 1e-6
# e^20 is far outside any clip; without a bound one wild logprob would make the loss infinite.
_LOG_RATIO_MAX: Final = 20.0


def teaches(rewards: Sequence[float]) -> bool:
    """Return whether the rewards of a group differ, so that it has advantages."""
    return float(np.std(np.asarray(rewards, np.float64))) > _SPREAD_MIN


def group_advantages(rewards: Sequence[float], groups: Sequence[int]) -> tuple[float, ...]:
    """Return how much better than its group each trajectory did, in standard deviations.

    0 for all of a group with equal rewards, and so for one that is alone.

    Args:
        rewards: of each trajectory.
        groups: which group each is of.

    Raises:
        InvalidArgument: there is not one group for each reward.
    """
    if len(rewards) != len(groups):
        raise InvalidArgument(f"{len(rewards)} rewards for {len(groups)} trajectories")
    reward, group = np.asarray(rewards, np.float64), np.asarray(groups)
    advantages = np.zeros(len(rewards))
    for one in set(groups):
        is_of_it = group == one
        rewards_of_it = reward[is_of_it]
        if teaches(rewards_of_it):
            advantages[is_of_it] = (rewards_of_it - rewards_of_it.mean()) / rewards_of_it.std()
    return tuple(advantages.tolist())


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the natural logprobs of tokens.

    Args:
        logits: (k, vocabulary), of any floating dtype; computed with in float32.
        tokens: (k,) int64.
        temperature: of sampling, > 0.

    Returns:
        (k,) float32.
    """
    rows = torch.log_softmax(logits.float() / temperature, dim=-1)
    return rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def clipped_loss(
    logprobs: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor, *, clip: float
) -> torch.Tensor:
    """Return the sum over tokens of -min(ratio A, clipped ratio A).

    Args:
        logprobs: (k,) of each token under the weights that learn.
        behaviour: (k,) of each token when it was said.
        advantages: (k,) of the trajectory each token is of.
        clip: how far a ratio may be from 1 before a token stops to push it further.

    Returns:
        0-d, of the dtype of `logprobs`.
    """
    log_ratio = (logprobs - behaviour).clamp(-_LOG_RATIO_MAX, _LOG_RATIO_MAX)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantages, bounded * advantages).sum()
