"""Step functions over time: put into bins, joined into a `Lending`, and summed up."""

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.sim.cluster.world import Lending

Column = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]


def bin_edges(*, bin_ms: float, horizon_ms: float) -> Column:
    """Return (k + 1,) the edges of bins that cover the horizon; the last bin may be shorter.

    Raises:
        InvalidArgument: a bin or a horizon of no length.
    """
    if not (0 < bin_ms < np.inf and 0 < horizon_ms < np.inf):
        raise InvalidArgument(f"bins of {bin_ms} ms do not divide a horizon of {horizon_ms} ms")
    starts_ms = np.arange(0.0, horizon_ms, bin_ms)
    # Rounded, the last one may be the horizon itself.
    return np.append(starts_ms[starts_ms < horizon_ms], horizon_ms)


def mean_share(
    at_ms: Column, share: Column, *, bin_ms: float, horizon_ms: float
) -> tuple[Column, Column]:
    """Return (times, shares): the mean over each bin, so the sum over time stays what it is."""
    edges = bin_edges(bin_ms=bin_ms, horizon_ms=horizon_ms)
    # The integral is a straight line between two changes.
    ends_ms = np.append(at_ms[1:], max(horizon_ms, at_ms[-1]))
    done_ms = np.concatenate(([0.0], np.cumsum(share * (ends_ms - at_ms))))
    at_edges = np.interp(edges, np.append(at_ms, ends_ms[-1]), done_ms)
    return edges[:-1], np.clip(np.diff(at_edges) / np.diff(edges), 0.0, 1.0)


def peak_context(at_ms: Column, tokens: Column, *, bin_ms: float, horizon_ms: float) -> Column:
    """Return the most in each bin, that of its beginning included."""
    starts = bin_edges(bin_ms=bin_ms, horizon_ms=horizon_ms)[:-1]
    peak = tokens[np.searchsorted(at_ms, starts, side="right") - 1]
    inside = at_ms < horizon_ms
    np.maximum.at(peak, np.searchsorted(starts, at_ms[inside], side="right") - 1, tokens[inside])
    return peak


def joined(
    at_ms: Column, share: Column, *, kv_at_ms: Column, kv_tokens: Tokens, horizon_ms: float
) -> Lending:
    """Return the timeline of both columns, a row for each time at which one of them changes."""
    times = np.union1d(at_ms, kv_at_ms)
    times = times[times < horizon_ms]
    shares = share[np.searchsorted(at_ms, times, side="right") - 1]
    tokens = kv_tokens[np.searchsorted(kv_at_ms, times, side="right") - 1]
    is_new = np.concatenate(([True], (np.diff(shares) != 0) | (np.diff(tokens) != 0)))
    return Lending(
        at_ms=times[is_new], share=shares[is_new], kv_tokens=tokens[is_new].astype(np.int64)
    )


def means(lending: Lending, *, horizon_ms: float) -> tuple[float, float]:
    """Return the mean share and the mean of the lent tokens, over time."""
    spans_ms = np.diff(np.append(lending.at_ms, horizon_ms))
    return (
        float(spans_ms @ lending.share / horizon_ms),
        float(spans_ms @ lending.kv_tokens / horizon_ms),
    )
