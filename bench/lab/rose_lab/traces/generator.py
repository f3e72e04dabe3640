"""Generate traffic with the statistics of a public trace, without its file.

`chat` resembles the Azure chat trace of November 2023: a Poisson process whose rate drifts over
minutes and flickers over seconds. In the trace, beyond Poisson noise, the rate's coefficient of
variation is 0.21 from minute to minute and 0.26 from second to second. `code` resembles the Azure
code trace of that month, the harsh case: long prompts, short outputs, 73 % of the seconds without a
request, and 26 times the mean rate in the busiest second. Its median lengths are from Splitwise
(arXiv 2311.18677); the file itself was not available, see `rose_lab.traces.profile`. `steady` is a
plain Poisson process with the lengths of `chat`: the control for burstiness.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose_lab.traces.profile import PROFILES, Profile, Quantiles
from rose_lab.traces.trace import Trace

REQUESTS_MAX: Final = 10_000_000

_STEP_S: Final = 0.5
_STEPS_PER_BURST: Final = 2
_RATE_RATIO_MIN: Final = 1e-9


def generate(profile: str, *, duration_s: float, rate_rps: float | None = None, seed: int) -> Trace:
    """Generate requests; equal arguments give equal traces.

    Prompt and output lengths are independent (in the Azure chat trace their logs correlate by
    0.09).

    Args:
        profile: one of `PROFILES`.
        duration_s: length of the trace in seconds, > 0.
        rate_rps: expected mean rate in requests per second, > 0; None for the rate of the profile's
            public trace.
        seed: seed of the generator, >= 0.

    Raises:
        InvalidArgument: a value is out of range, or more than `REQUESTS_MAX` requests are expected.
    """
    if profile not in PROFILES:
        raise InvalidArgument(f"profile {profile!r} is not known: use {', '.join(PROFILES)}")
    kind = PROFILES[profile]
    rate_rps = kind.rate_rps if rate_rps is None else rate_rps
    _check_ranges(duration_s, rate_rps, seed)
    random = np.random.default_rng(seed)
    arrival_s = _arrivals(random, kind, duration_s, rate_rps)
    return Trace(
        arrival_s=arrival_s,
        prompt_tokens=_lengths(random, arrival_s.size, kind.prompt),
        output_tokens=_lengths(random, arrival_s.size, kind.output),
        name=f"generated {profile} (seed {seed})",
        span_s=duration_s,
    )


def _check_ranges(duration_s: float, rate_rps: float, seed: int) -> None:
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


def _arrivals(
    random: np.random.Generator, kind: Profile, duration_s: float, rate_rps: float
) -> npt.NDArray[np.float64]:
    """Draw a count per step, then times within the step: exact for a Poisson process."""
    steps = math.ceil(duration_s / _STEP_S)
    step_s = duration_s / steps
    ratio = _rate_ratios(random, kind, steps, step_s)
    counts = random.poisson(rate_rps * step_s * ratio)
    first_step = np.repeat(np.arange(steps), counts)
    return np.sort((first_step + random.random(first_step.size)) * step_s).clip(max=duration_s)


def _rate_ratios(
    random: np.random.Generator, kind: Profile, steps: int, step_s: float
) -> npt.NDArray[np.float64]:
    """Draw the rate of each step relative to the mean; the ratios' mean is exactly 1."""
    log_rate = np.zeros(steps)
    for deviation, correlation_s in kind.wander:
        log_rate += _wander(random, steps, step_s, deviation, correlation_s)
    ratio = np.exp(log_rate)
    if kind.burst_shape is not None:
        bursts = random.gamma(kind.burst_shape, 1 / kind.burst_shape, -(-steps // _STEPS_PER_BURST))
        ratio *= np.repeat(bursts, _STEPS_PER_BURST)[:steps]
    # The lower bound keeps the mean above 0 if all draws of a short trace are tiny.
    kept: npt.NDArray[np.float64] = np.clip(ratio, _RATE_RATIO_MIN, kind.rate_ratio_max)
    return kept / float(kept.mean())


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


def _lengths(random: np.random.Generator, n: int, quantiles: Quantiles) -> npt.NDArray[np.int64]:
    """Draw lengths from the quantile function, which is linear in log tokens between points."""
    shares, tokens = zip(*quantiles, strict=True)
    log_tokens = np.interp(random.random(n), shares, np.log(tokens))
    return np.maximum(np.rint(np.exp(log_tokens)), 1).astype(np.int64)
