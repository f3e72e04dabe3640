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
    logits: list[float], *, seed: int, position: int, temperature: float
) -> tuple[int, float]:
    """Return the token and the natural logarithm of its probability."""
    if temperature == 0:
        return max(range(len(logits)), key=lambda token: logits[token]), 0.0
    scaled = [logit / temperature for logit in logits]
    token = max(range(len(logits)), key=lambda token: scaled[token] + noise(seed, position, token))
    top = max(scaled)
    total = sum(math.exp(one - top) for one in scaled)
    return token, scaled[token] - top - math.log(total)
