"""Which share of a device is meant, written down as a search."""

from collections.abc import Sequence


def share_for(shares: Sequence[int], wanted: int | None) -> int | None:
    """Return the share that confines to at most `wanted`, the smallest if none does.

    Args:
        shares: ascending.
        wanted: None for the whole device.
    """
    if wanted is None or not shares:
        return None
    best = shares[0]
    for share in shares:
        if share <= wanted:
            best = share
    return best
