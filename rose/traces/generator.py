"""Generate chat traffic with the statistics of the Azure chat trace of November 2023.

Lengths come from quantiles of that trace. Arrivals are a Poisson process whose rate drifts over
minutes and flickers over seconds, because the trace's does: on top of Poisson noise its rate varies
(standard deviation over mean) by 0.21 from minute to minute and by 0.26 from second to second.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.traces.trace import Trace

REQUESTS_MAX: Final = 10_000_000

# (share of requests, tokens): the quantile function, read off the trace where it bends.
_PROMPT_QUANTILES: Final = (
    (0.0, 2), (0.01, 29), (0.05, 181), (0.1, 207), (0.2, 387), (0.3, 403), (0.4, 703),
    (0.5, 1020), (0.6, 1071), (0.7, 1130), (0.75, 1189), (0.8, 1315), (0.85, 1876),
    (0.9, 2734), (0.93, 4076), (0.95, 4083), (0.985, 4110), (0.99, 4142), (0.999, 6179),
    (1.0, 14050),
)  # fmt: skip
_OUTPUT_QUANTILES: Final = (
    (0.0, 7), (0.01, 16), (0.05, 41), (0.1, 54), (0.2, 77), (0.3, 91), (0.4, 103), (0.5, 129),
    (0.6, 177), (0.7, 384), (0.75, 395), (0.8, 400), (0.85, 411), (0.9, 424), (0.93, 433),
    (0.95, 451), (0.985, 571), (0.99, 601), (0.999, 954), (1.0, 1000),
)  # fmt: skip

# (standard deviation of the log rate, correlation time in seconds), fitted to the variance of
# counts per 1, 5, 10 and 60 s and to their autocorrelation.
_DRIFT: Final = (0.28, 400.0)
_FLICKER: Final = (0.14, 2.0)
# The log-normal tail is cut here: the busiest minute of the trace is 1.53x its mean.
_RATE_RATIO_MAX: Final = 1.55
_STEP_S: Final = 0.5


def generate_chat(*, duration_s: float, rate_rps: float, seed: int) -> Trace:
    """Generate chat requests; equal arguments give equal traces.

    Prompt and output lengths are independent (in the Azure trace their logs correlate by 0.09).

    Args:
        duration_s: > 0.
        rate_rps: expected mean over the whole trace, in requests per second, > 0; bursts go up to
            about three times it.
        seed: >= 0.

    Raises:
        InvalidArgument: a value is out of range, or more than `REQUESTS_MAX` requests would come.
    """
    for name, value in (("duration_s", duration_s), ("rate_rps", rate_rps)):
        if not 0 < value < math.inf:
            raise InvalidArgument(f"{name} is {value}, give a number above 0")
    if seed < 0:
        raise InvalidArgument(f"seed is {seed}, give a whole number of at least 0")
    if duration_s * rate_rps > REQUESTS_MAX or duration_s > REQUESTS_MAX * _STEP_S:
        raise InvalidArgument(
            f"{rate_rps} requests/s for {duration_s} s is more than a trace holds "
            f"({REQUESTS_MAX} requests, {REQUESTS_MAX * _STEP_S:.0f} s); shorten it"
        )
    random = np.random.default_rng(seed)
    arrival_s = _arrivals(random, duration_s, rate_rps)
    return Trace(
        arrival_s=arrival_s,
        prompt_tokens=_lengths(random, arrival_s.size, _PROMPT_QUANTILES),
        output_tokens=_lengths(random, arrival_s.size, _OUTPUT_QUANTILES),
        name=f"generated chat (seed {seed})",
        span_s=duration_s,
    )


def _arrivals(
    random: np.random.Generator, duration_s: float, rate_rps: float
) -> npt.NDArray[np.float64]:
    """Draw a count per step, then places within the step, which is exact for a Poisson process."""
    steps = math.ceil(duration_s / _STEP_S)
    step_s = duration_s / steps
    log_rate = _wander(random, steps, step_s, *_DRIFT) + _wander(random, steps, step_s, *_FLICKER)
    ratio = np.minimum(np.exp(log_rate), _RATE_RATIO_MAX)
    counts = random.poisson(rate_rps * step_s * ratio / ratio.mean())
    first_step = np.repeat(np.arange(steps), counts)
    return np.sort((first_step + random.random(first_step.size)) * step_s).clip(max=duration_s)


def _wander(
    random: np.random.Generator, steps: int, step_s: float, deviation: float, correlation_s: float
) -> npt.NDArray[np.float64]:
    """Draw a stationary first-order autoregression, the discrete Ornstein-Uhlenbeck process."""
    keep = math.exp(-step_s / correlation_s)
    kicks = random.standard_normal(steps) * math.sqrt(1.0 - keep * keep)
    walk = np.empty(steps)
    value = float(random.standard_normal())
    for step in range(steps):
        walk[step] = value
        value = keep * value + float(kicks[step])
    return deviation * walk


def _lengths(
    random: np.random.Generator, n: int, quantiles: tuple[tuple[float, int], ...]
) -> npt.NDArray[np.int64]:
    """Draw by inverting the quantile function, linear in the log between its points."""
    shares, tokens = zip(*quantiles, strict=True)
    log_tokens = np.interp(random.random(n), shares, np.log(tokens))
    return np.maximum(np.rint(np.exp(log_tokens)), 1).astype(np.int64)
