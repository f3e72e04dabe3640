"""Which relay of a cluster a tile lands on, so that one who comes or goes moves few others' tiles.

Every relay draws a number for the tile, from a hash of both names; the best one wins. Without the
winner the second wins, and nobody else's tiles move. Weighted as in Schindelhauer and Schomaker,
"Weighted Distributed Hash Tables" (2005), section 4: the share of a relay is that of its bandwidth.
"""

from collections.abc import Iterable
from hashlib import blake2b
from math import log
from typing import Final

from rose.transfer.plan.members import Relay

# A float has 53 bits; half of one more keeps a draw from 0 and 1, of which there is no logarithm.
_DRAWN_BITS: Final = 53


class Rendezvous:
    """Where tiles meet the relays of one cluster.

    Args:
        relays: of the cluster.
    """

    __slots__ = ("_relays",)

    def __init__(self, relays: Iterable[Relay]) -> None:
        self._relays = [
            (relay.name, relay.bandwidth, blake2b(relay.name.encode(), digest_size=32).digest())
            for relay in relays
        ]

    def landing(self, tile: bytes) -> str | None:
        """Choose a relay by name; None where there is none.

        Args:
            tile: what identifies the tile, however many others there are.
        """
        arrivals = (
            (-log(_share(tile, key)) / bandwidth, name) for name, bandwidth, key in self._relays
        )
        return min(arrivals, default=(0.0, None))[1]


def _share(tile: bytes, key: bytes) -> float:
    drawn = int.from_bytes(blake2b(tile, digest_size=8, key=key).digest(), "little")
    return ((drawn >> (64 - _DRAWN_BITS)) + 0.5) / (1 << _DRAWN_BITS)
