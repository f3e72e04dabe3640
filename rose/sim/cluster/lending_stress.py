"""Shapes of trouble: pure functions that take a `Lending` and return a harder one.

A correlated burst is `revoked` with the same times on many devices.
"""

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.sim.cluster.world import Lending


def revoked(lending: Lending, *, from_ms: float, to_ms: float) -> Lending:
    """Return the lending with nothing lent in [from_ms, to_ms).

    Raises:
        InvalidArgument: the times do not ascend from 0.
    """
    return _without(lending, np.array([[from_ms, to_ms]], dtype=np.float64))


def flapping(
    lending: Lending, *, period_ms: float, lent_share: float, horizon_ms: float, phase_ms: float = 0
) -> Lending:
    """Return the lending with all of it taken back once in every period.

    A period of a lease's time to live is the worst: each lease is renewed for nothing.

    Args:
        lending: what there is between.
        period_ms: > 0.
        lent_share: of the period that comes first and is left as it is, in [0, 1].
        horizon_ms: where the flapping ends.
        phase_ms: where the first period begins, >= 0.

    Raises:
        InvalidArgument: a value is out of its range.
    """
    if not (period_ms > 0 and 0 <= lent_share <= 1):
        raise InvalidArgument(
            f"flapping needs a period above 0 and a share in [0, 1], not {period_ms} ms "
            f"and {lent_share}"
        )
    begins_ms = np.arange(phase_ms, horizon_ms, period_ms)
    spans = np.stack((begins_ms + lent_share * period_ms, begins_ms + period_ms), axis=1)
    return _without(lending, np.minimum(spans, horizon_ms))


def revoked_during_updates(
    lending: Lending, *, published_ms: npt.NDArray[np.float64], after_ms: float, for_ms: float
) -> Lending:
    """Return the lending with all of it taken back while weights are on their way.

    Args:
        lending: what there is between.
        published_ms: (v,) float64, ascending, when versions come.
        after_ms: how long after each the revocation begins, >= 0.
        for_ms: how long it lasts, > 0.

    Raises:
        InvalidArgument: a time is out of its range.
    """
    begins_ms = published_ms + after_ms
    return _without(lending, np.stack((begins_ms, begins_ms + for_ms), axis=1))


def _without(lending: Lending, spans: npt.NDArray[np.float64]) -> Lending:
    """Return what is left outside of spans (n, 2), which begin in ascending order."""
    if not np.isfinite(spans).all() or (spans < 0).any() or (np.diff(spans, axis=1) < 0).any():
        raise InvalidArgument("what is revoked begins at a time >= 0, and ends after that")
    times = np.union1d(lending.at_ms, spans.ravel())
    row = np.searchsorted(lending.at_ms, times, side="right") - 1
    # Spans may reach into the next one: a time is inside as long as more have begun than ended.
    begun = np.searchsorted(np.sort(spans[:, 0]), times, side="right")
    ended = np.searchsorted(np.sort(spans[:, 1]), times, side="right")
    is_lent = begun <= ended
    share = np.where(is_lent, lending.share[row], 0.0)
    kv_tokens = np.where(is_lent, lending.kv_tokens[row], 0)
    is_new = np.concatenate(([True], (np.diff(share) != 0) | (np.diff(kv_tokens) != 0)))
    return Lending(at_ms=times[is_new], share=share[is_new], kv_tokens=kv_tokens[is_new])
