"""Sampling by counter in plain Python: one token at a time, whole numbers and doubles."""

import math

WORD = 1 << 64


def mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % WORD
    return word ^ (word >> 31)


def noise(seed: int, position: int, token: int) -> float:
    key = mix((mix(seed % WORD) + (position + 1) * 0x9E3779B97F4A7C15) % WORD)
    word = mix((key + (token + 1) * 0x9E3779B97F4A7C15) % WORD)
    uniform = ((word >> 32) + 0.5) / 2**32
    return -math.log(-math.log1p(-uniform))


def choose(
    logits: list[float],
    *,
    seed: int,
    position: int,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    withheld: tuple[int, ...] = (),
) -> tuple[int, list[float]]:
    """Return the token, and the natural logarithm of the probability of every token."""
    left = [-math.inf if token in withheld else logit for token, logit in enumerate(logits)]
    if temperature == 0:
        token = max(range(len(left)), key=lambda token: left[token])
        return token, log_softmax(left)
    left = [logit / temperature for logit in left]
    top = max(left)
    if min_p:
        left = [one if math.exp(one - top) >= min_p else -math.inf for one in left]
    if top_k:
        least = sorted(left, reverse=True)[min(top_k, len(left)) - 1]
        left = [one if one >= least else -math.inf for one in left]
    if top_p < 1:
        mass, least = 0.0, top
        for one in sorted(left, reverse=True):
            if mass >= top_p:
                break
            mass, least = mass + math.exp(one - top) / total(left), one
        left = [one if one >= least else -math.inf for one in left]
    token = max(range(len(left)), key=lambda token: left[token] + noise(seed, position, token))
    return token, log_softmax(left)


def total(logits: list[float]) -> float:
    top = max(logits)
    return sum(math.exp(one - top) for one in logits)


def log_softmax(logits: list[float]) -> list[float]:
    top, logarithm = max(logits), math.log(total(logits))
    return [one - top - logarithm for one in logits]
