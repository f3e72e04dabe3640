"""The loss and its gradient, one token at a time in float64, and AdamW as its paper writes it."""

from collections.abc import Sequence
from statistics import fmean, pstdev

import numpy as np


def advantages(rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
    answer = []
    for reward, group in zip(rewards, groups, strict=True):
        peers = [one for one, other in zip(rewards, groups, strict=True) if other == group]
        spread = pstdev(peers)
        answer.append(0.0 if spread < 1e-6 else (reward - fmean(peers)) / spread)
    return answer


def token_loss(
    logits: np.ndarray,
    token: int,
    *,
    behaviour: float,
    advantage: float,
    clip: float,
    temperature: float,
) -> tuple[float, np.ndarray]:
    """Return the loss of one token, and its gradient by the (vocabulary,) logits."""
    scaled = logits.astype(np.float64) / temperature
    share = np.exp(scaled - scaled.max())
    share /= share.sum()
    ratio = share[token] / np.exp(behaviour)
    one_hot = np.eye(len(logits))[token]
    is_cut = ratio > 1 + clip if advantage > 0 else ratio < 1 - clip
    if is_cut:
        edge = 1 + clip if advantage > 0 else 1 - clip
        return -edge * advantage, np.zeros(len(logits))
    return -ratio * advantage, -advantage * ratio * (one_hot - share) / temperature


def adamw_step(
    weights: np.ndarray,
    gradient: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    decay: float = 0.0,
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return weights and moments after step number `step`, counted from 1."""
    mean = betas[0] * moments[0] + (1 - betas[0]) * gradient
    square = betas[1] * moments[1] + (1 - betas[1]) * gradient**2
    ahead = mean / (1 - betas[0] ** step)
    spread = np.sqrt(square / (1 - betas[1] ** step)) + eps
    return weights - lr * decay * weights - lr * ahead / spread, (mean, square)
