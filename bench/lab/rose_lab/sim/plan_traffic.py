"""Bytes that a plan moves: between clusters, inside them, and per member."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rose.errors import InvalidArgument
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.spec import Holder

Link: TypeAlias = tuple[str, str]  # (from cluster, to cluster)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one update.

    Args:
        crossing: bytes over each link between clusters.
        fan_out: bytes sent inside each cluster, by its relays or by source ranks.
        sent: bytes that each source rank sends.
        relayed: bytes that each relay sends.
        received: bytes that each receiver gets.
    """

    crossing: Mapping[Link, int]
    fan_out: Mapping[str, int]
    sent: Mapping[int, int]
    relayed: Mapping[str, int]
    received: Mapping[Holder, int]


def traffic(plan: Plan, bytes_of_tile: Sequence[int]) -> Traffic:
    """Add up the traffic of one update.

    Args:
        plan: plan of the tiles.
        bytes_of_tile: packed size of each tile, by index.

    Raises:
        InvalidArgument: the plan has another number of tiles.
    """
    if len(bytes_of_tile) != len(plan.tiles):
        raise InvalidArgument(
            f"bytes_of_tile needs {len(plan.tiles)} sizes, got {len(bytes_of_tile)}"
        )
    home = plan.sources.cluster
    crossing, fan_out, relayed = Counter[Link](), Counter[str](), Counter[str]()
    sent, received = Counter[int](), Counter[Holder]()
    for tile, nbytes in zip(plan.tiles, bytes_of_tile, strict=True):
        relay_of = {landing.cluster: landing.relay for landing in tile.landings}
        for cluster in relay_of:
            crossing[home, cluster] += nbytes
            sent[tile.contributor] += nbytes
        for holder in tile.receivers:
            received[holder] += nbytes
            if holder.cluster in relay_of:
                relayed[relay_of[holder.cluster]] += nbytes
                fan_out[holder.cluster] += nbytes
                continue
            sent[tile.contributor] += nbytes
            crossing[home, holder.cluster] += nbytes
    fan_out[home] += crossing.pop((home, home), 0)
    return Traffic(crossing, +fan_out, sent, relayed, received)
