"""Trajectories as padded tensors, a few at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rose.demo.rl.policy_gradient import teaches
from rose.demo.rl.trajectory import Trajectory


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
    shape = len(pairs), len(pairs[-1][0].tokens)
    tokens = torch.zeros(shape, dtype=torch.int64)
    is_token = torch.zeros(shape, dtype=torch.int64)
    is_generated = torch.zeros(shape, dtype=torch.bool)
    behaviour = torch.zeros(shape)
    advantage = torch.zeros(shape)
    for row, (trajectory, value) in enumerate(pairs):
        end = len(trajectory.tokens)
        tokens[row, :end] = torch.tensor(trajectory.tokens)
        is_token[row, :end] = 1
        is_generated[row, :end] = torch.tensor(trajectory.is_generated)
        behaviour[row, :end] = torch.tensor(trajectory.logprobs)
        advantage[row] = value
    is_learned = is_generated[:, 1:]
    return Microbatch(
        tokens=tokens,
        is_token=is_token,
        is_learned=is_learned,
        targets=tokens[:, 1:][is_learned],
        behaviour=behaviour[:, 1:][is_learned],
        advantages=advantage[:, 1:][is_learned],
    )
