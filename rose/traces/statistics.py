"""Statistics of a trace: rates of requests, their variation, and lengths."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.traces.trace import Trace

RATE_BINS_S: Final = (1, 60)
DISPERSION_BINS_S: Final = (1, 10, 60)
# More counts would not fit into memory beside the trace.
_BINS_MAX: Final = 50_000_000


@dataclass(frozen=True, slots=True)
class RateStatistics:
    """Rate of requests, counted in bins of equal length.

    Args:
        bin_s: length of a bin.
        p50: requests per second.
        p99: requests per second.
        max: requests per second.
    """

    bin_s: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Tokens of the prompts, or of the outputs, of all requests."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Statistics of a trace.

    Args:
        requests: number of requests.
        duration_s: duration of the trace.
        mean_rate_rps: mean rate in requests per second.
        rates: statistics for each of `RATE_BINS_S`; None if the trace is shorter than one bin.
        dispersion: variance over mean of the counts per bin, for each of `DISPERSION_BINS_S`: 1 for
            a Poisson process, more for bursts; None without two bins.
        prompt: lengths of the prompts.
        output: lengths of the outputs.
    """

    requests: int
    duration_s: float
    mean_rate_rps: float
    rates: tuple[RateStatistics | None, ...]
    dispersion: tuple[float | None, ...]
    prompt: LengthStatistics
    output: LengthStatistics


def describe(trace: Trace) -> TraceStatistics:
    """Measure `trace`; only whole bins count, since a partial one would look quiet.

    Raises:
        InvalidArgument: the trace has no requests, or is too long to count.
    """
    if not len(trace):
        raise InvalidArgument(f"trace {trace.name} has no requests to describe")
    if trace.duration_s > _BINS_MAX:
        raise InvalidArgument(
            f"trace {trace.name} covers {trace.duration_s:.0f} s, more than the {_BINS_MAX} s "
            f"that can be counted; give a part of it"
        )
    return TraceStatistics(
        requests=len(trace),
        duration_s=trace.duration_s,
        mean_rate_rps=trace.mean_rate_rps,
        rates=tuple(_rate(trace, bin_s) for bin_s in RATE_BINS_S),
        dispersion=tuple(_dispersion(trace, bin_s) for bin_s in DISPERSION_BINS_S),
        prompt=_lengths(trace.prompt_tokens),
        output=_lengths(trace.output_tokens),
    )


def counts_per_bin(trace: Trace, bin_s: float) -> npt.NDArray[np.int64]:
    """Return (n,) int64: the requests in each whole bin of `bin_s` seconds, from the start."""
    bins = int(trace.duration_s / bin_s)
    # A request at the end of the last whole bin belongs to the next, as in every other bin.
    at = np.floor(trace.arrival_s / bin_s).astype(np.int64)
    return np.bincount(at[at < bins], minlength=bins).astype(np.int64)


def _rate(trace: Trace, bin_s: int) -> RateStatistics | None:
    counts = counts_per_bin(trace, bin_s)
    if not counts.size:
        return None
    p50, p99 = np.percentile(counts, [50, 99]) / bin_s
    return RateStatistics(bin_s, float(p50), float(p99), float(counts.max()) / bin_s)


def _dispersion(trace: Trace, bin_s: int) -> float | None:
    counts = counts_per_bin(trace, bin_s)
    if counts.size < 2 or not counts.any():
        return None
    return float(counts.var() / counts.mean())


def _lengths(tokens: npt.NDArray[np.int64]) -> LengthStatistics:
    p50, p90, p99 = (float(value) for value in np.percentile(tokens, [50, 90, 99]))
    return LengthStatistics(float(tokens.mean()), p50, p90, p99, int(tokens.max()))
