"""Trajectories as padded tensors, and the loss: a clipped ratio for every token that was said.

Rewards are compared within a group.
Source: PPO (arXiv 1707.06347) with the group as its baseline, as in GRPO (arXiv 2402.03300).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from rose.demo.rl.trajectory import Trajectory

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
    """
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


@dataclass(frozen=True, slots=True)
class Microbatch:
    """What one forward pass takes: b trajectories padded to t tokens, k of them to learn from.

    Args:
        tokens: (b, t) int64, 0 where padded.
        is_token: (b, t) int64, 1 where not padded.
        is_learned: (b, t - 1) bool: the *next* token was generated.
        targets: (k,) int64, those next tokens.
        behaviour: (k,) fp32, their logprobs when they were said.
        advantages: (k,) fp32, of their trajectories.
    """

    tokens: torch.Tensor
    is_token: torch.Tensor
    is_learned: torch.Tensor
    targets: torch.Tensor
    behaviour: torch.Tensor
    advantages: torch.Tensor


def first_groups(trajectories: Sequence[Trajectory], most: int) -> list[Trajectory]:
    """Return the trajectories of the first groups that differ in reward.

    A group whose rewards are all equal teaches nothing, so it takes no place.

    Args:
        trajectories: the first come first.
        most: groups are taken while there are fewer trajectories than this; 0 returns all.
    """
    if most == 0:
        return list(trajectories)
    groups: dict[int, list[Trajectory]] = {}
    for one in trajectories:
        groups.setdefault(one.group, []).append(one)
    taken: list[Trajectory] = []
    for members in groups.values():
        if len(taken) < most and teaches([one.reward for one in members]):
            taken += members
    return taken


def microbatches(
    trajectories: Sequence[Trajectory], advantages: Sequence[float], *, tokens_max: int
) -> Iterator[Microbatch]:
    """Cut trajectories into microbatches of like length.

    Those without an advantage would add nothing but time and are left out.

    Args:
        trajectories: in any order; equal sets give equal microbatches.
        advantages: of each.
        tokens_max: of a padded microbatch; a longer trajectory is alone in its own.
    """
    pairs = [pair for pair in zip(trajectories, advantages, strict=True) if pair[1] != 0.0]
    pairs.sort(key=lambda pair: (len(pair[0].tokens), pair[0].number))
    first = 0
    for end in range(1, len(pairs) + 1):
        if end == len(pairs) or (end + 1 - first) * len(pairs[end][0].tokens) > tokens_max:
            yield _padded(pairs[first:end])
            first = end


def _padded(pairs: Sequence[tuple[Trajectory, float]]) -> Microbatch:
    def rows(name: str) -> torch.Tensor:
        each = [torch.tensor(getattr(one, name)) for one, _ in pairs]
        return torch.nn.utils.rnn.pad_sequence(each, batch_first=True)

    tokens, is_generated, behaviour = rows("tokens"), rows("is_generated"), rows("logprobs")
    lengths = torch.tensor([[len(one.tokens)] for one, _ in pairs])
    is_token = (torch.arange(tokens.shape[1]) < lengths).long()
    advantage = torch.tensor([[value] for _, value in pairs]).expand_as(behaviour)
    is_learned = is_generated[:, 1:]
    return Microbatch(
        tokens=tokens,
        is_token=is_token,
        is_learned=is_learned,
        targets=tokens[:, 1:][is_learned],
        behaviour=behaviour[:, 1:][is_learned],
        advantages=advantage[:, 1:][is_learned],
    )
