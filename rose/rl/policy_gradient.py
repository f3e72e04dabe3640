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


def group_advantages(rewards: Sequence[float], groups: Sequence[int]) -> tuple[float, ...]:
    """Return how much better than its group each trajectory did, in standard deviations.

    0 for all of a group with equal rewards, and so for one that is alone.

    Args:
        rewards: of each trajectory.
        groups: which group each is of.
    """
    if len(rewards) != len(groups):
        raise InvalidArgument(f"{len(rewards)} rewards for {len(groups)} trajectories")
    reward, group = np.asarray(rewards, np.float64), np.asarray(groups)
    advantages = np.zeros(len(rewards))
    for one in set(groups):
        is_of_it = group == one
        spread = float(reward[is_of_it].std())
        if spread > _SPREAD_MIN:
            advantages[is_of_it] = (reward[is_of_it] - reward[is_of_it].mean()) / spread
    return tuple(advantages.tolist())


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return (k,) natural logprobs of `tokens` (k,) under `logits` (k, vocabulary)."""
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
    """
    log_ratio = (logprobs - behaviour).clamp(-_LOG_RATIO_MAX, _LOG_RATIO_MAX)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantages, bounded * advantages).sum()
