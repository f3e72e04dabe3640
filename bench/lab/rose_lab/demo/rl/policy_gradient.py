"""Trajectories as padded tensors, and the loss: a clipped ratio for every generated token.

Rewards are compared within a group.
Source: PPO (arXiv 1707.06347) with the group as its baseline, as in GRPO (arXiv 2402.03300).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from rose_lab.demo.rl.trajectory import Trajectory

# Rewards with a smaller spread count as equal: sums of shaped rewards differ by rounding, and
# dividing by that spread would amplify noise.
_SPREAD_MIN: Final = 1e-6
# e^20 is far outside any clip; without a bound one extreme logprob would make the loss infinite.
_LOG_RATIO_MAX: Final = 20.0


def teaches(rewards: Sequence[float]) -> bool:
    """Return whether the rewards of a group differ, so that its advantages are not all 0."""
    return float(np.std(np.asarray(rewards, np.float64))) > _SPREAD_MIN


def group_advantages(rewards: Sequence[float], groups: Sequence[int]) -> tuple[float, ...]:
    """Return each trajectory's reward above its group's mean, in standard deviations.

    The result is 0 in a group with equal rewards, and so in a group of one.

    Args:
        rewards: reward of each trajectory.
        groups: group number of each trajectory.
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
        logits: (k, vocabulary) of any floating dtype; the computation is in float32.
        tokens: (k,) int64.
        temperature: sampling temperature, > 0.

    Returns:
        (k,) float32.
    """
    rows = torch.log_softmax(logits.float() / temperature, dim=-1)
    return rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def clipped_loss(
    logprobs: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor, *, clip: float
) -> torch.Tensor:
    """Return the sum over tokens of -min(ratio * A, clipped ratio * A), where A is the advantage.

    Args:
        logprobs: (k,) floating, logprob of each token under the current weights.
        behaviour: (k,) fp32, logprob of each token when it was generated.
        advantages: (k,) fp32, advantage of each token's trajectory.
        clip: distance of a ratio from 1 beyond which its gradient is cut.

    Returns:
        0-d tensor with the dtype of `logprobs`.
    """
    log_ratio = (logprobs - behaviour).clamp(-_LOG_RATIO_MAX, _LOG_RATIO_MAX)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantages, bounded * advantages).sum()


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Input of one forward pass: b trajectories padded to t tokens, with k tokens to learn from.

    Args:
        tokens: (b, t) int64, 0 where padded.
        is_token: (b, t) int64, 1 where not padded.
        is_learned: (b, t - 1) bool, whether the policy generated the *next* token.
        targets: (k,) int64, the tokens to learn from.
        behaviour: (k,) fp32, their logprobs when they were generated.
        advantages: (k,) fp32, the advantages of their trajectories.
    """

    tokens: torch.Tensor
    is_token: torch.Tensor
    is_learned: torch.Tensor
    targets: torch.Tensor
    behaviour: torch.Tensor
    advantages: torch.Tensor


def first_groups(trajectories: Sequence[Trajectory], most: int) -> list[Trajectory]:
    """Return the trajectories of the first groups with differing rewards.

    A group with equal rewards teaches nothing and is skipped.

    Args:
        trajectories: candidates in order of priority.
        most: whole groups are added until the result has at least this many trajectories; 0 returns
            all trajectories, also of groups with equal rewards.
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
    """Combine trajectories of similar length into microbatches.

    Trajectories with advantage 0 do not affect the gradient and are skipped.

    Args:
        trajectories: trajectories in any order; equal sets give equal microbatches.
        advantages: advantage of each trajectory.
        tokens_max: maximum tokens of a padded microbatch; a longer trajectory gets its own.
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
