"""Kinds of traffic: lengths as quantile functions, and the variation of the rate."""

from dataclasses import dataclass
from typing import Final

Quantiles = tuple[tuple[float, int], ...]
"""(share of requests, tokens), ascending, from share 0 to 1."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of traffic.

    Args:
        name: name on the command line.
        rate_rps: mean rate of the public trace, in requests per second.
        prompt: quantiles of prompt lengths.
        output: quantiles of output lengths.
        wander: (standard deviation of the log rate, correlation time in seconds) of each process
            that modulates the rate; empty for a Poisson process.
        burst_shape: shape of a gamma distribution with mean 1; a draw from it multiplies the rate
            of each second. The smaller the shape, the more seconds are empty. None for no bursts.
        rate_ratio_max: largest allowed rate ÷ the mean rate.
    """

    name: str
    rate_rps: float
    prompt: Quantiles
    output: Quantiles
    wander: tuple[tuple[float, float], ...]
    burst_shape: float | None
    rate_ratio_max: float


# Quantile functions of the Azure chat trace of November 2023, at their bends.
_CHAT_PROMPT: Final = (
    (0.0, 2), (0.01, 29), (0.05, 181), (0.1, 207), (0.2, 387), (0.3, 403), (0.4, 703),
    (0.5, 1020), (0.6, 1071), (0.7, 1130), (0.75, 1189), (0.8, 1315), (0.85, 1876),
    (0.9, 2734), (0.93, 4076), (0.95, 4083), (0.985, 4110), (0.99, 4142), (0.999, 6179),
    (1.0, 14050),
)  # fmt: skip
_CHAT_OUTPUT: Final = (
    (0.0, 7), (0.01, 16), (0.05, 41), (0.1, 54), (0.2, 77), (0.3, 91), (0.4, 103), (0.5, 129),
    (0.6, 177), (0.7, 384), (0.75, 395), (0.8, 400), (0.85, 411), (0.9, 424), (0.93, 433),
    (0.95, 451), (0.985, 571), (0.99, 601), (0.999, 954), (1.0, 1000),
)  # fmt: skip
# Chosen to match the means (2048 and 28 tokens) and medians (1500 and 13) of the Azure code trace;
# values in between are a smooth guess.
_CODE_PROMPT: Final = (
    (0.0, 3), (0.05, 150), (0.1, 250), (0.25, 640), (0.4, 1150), (0.5, 1500), (0.6, 1950),
    (0.75, 3000), (0.9, 4750), (0.95, 5900), (0.99, 7200), (1.0, 7500),
)  # fmt: skip
_CODE_OUTPUT: Final = (
    (0.0, 6), (0.1, 7), (0.25, 9), (0.5, 13), (0.75, 24), (0.9, 53), (0.95, 88), (0.99, 240),
    (0.999, 600), (1.0, 1000),
)  # fmt: skip

_CHAT: Final = Profile(
    name="chat",
    rate_rps=5.53,
    prompt=_CHAT_PROMPT,
    output=_CHAT_OUTPUT,
    # Drift and flicker, fitted to the variance and autocorrelation of counts per 1, 5, 10 and 60 s.
    wander=((0.28, 400.0), (0.14, 2.0)),
    burst_shape=None,
    # The log-normal tail is cut here: the busiest minute of the trace has 1.53 times the mean rate.
    rate_ratio_max=1.55,
)
_CODE: Final = Profile(
    name="code",
    rate_rps=2.57,
    prompt=_CODE_PROMPT,
    output=_CODE_OUTPUT,
    wander=(),
    # Solves (1 + 2.57 / shape) ** -shape = 0.73, the share of empty seconds.
    burst_shape=0.095,
    # The busiest second of the trace has 26 times the mean rate. The limit is lower: cutting lowers
    # the mean, which is restored afterwards, and Poisson noise adds to the rate.
    rate_ratio_max=20.0,
)
_STEADY: Final = Profile(
    name="steady",
    rate_rps=5.53,
    prompt=_CHAT_PROMPT,
    output=_CHAT_OUTPUT,
    wander=(),
    burst_shape=None,
    rate_ratio_max=1.0,
)

PROFILES: Final = {profile.name: profile for profile in (_CHAT, _CODE, _STEADY)}
