"""What a plan moves: over each link between clusters, inside of them, and through each NIC."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rose.errors import InvalidArgument
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.spec import Holder

Link: TypeAlias = tuple[str, str]  # from a cluster, to another


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one update.

    Args:
        crossing: over the link between two clusters.
        fan_out: inside a cluster, to receivers.
        sent: by source rank.
        relayed: by relay, what it sends on.
        landed: by relay, what comes in.
        received: by receiver.
    """

    crossing: Mapping[Link, int]
    fan_out: Mapping[str, int]
    sent: Mapping[int, int]
    relayed: Mapping[str, int]
    landed: Mapping[str, int]
    received: Mapping[Holder, int]


def traffic(plan: Plan, bytes_of_tile: Sequence[int]) -> Traffic:
    """Add up one update.

    Args:
        plan: the plan.
        bytes_of_tile: its packed tiles, by index.

    Raises:
        InvalidArgument: there are more or fewer tiles.
    """
    if len(bytes_of_tile) != len(plan.tiles):
        raise InvalidArgument(f"{len(bytes_of_tile)} sizes are none of {len(plan.tiles)} tiles")
    home = plan.sources.cluster
    crossing, fan_out = Counter[Link](), Counter[str]()
    sent, received = Counter[int](), Counter[Holder]()
    relayed, landed = Counter[str](), Counter[str]()
    for tile, nbytes in zip(plan.tiles, bytes_of_tile, strict=True):
        relay_of = {landing.cluster: landing.relay for landing in tile.landings}
        for cluster, relay in relay_of.items():
            crossing[home, cluster] += nbytes
            sent[tile.contributor] += nbytes
            landed[relay] += nbytes
        for holder in tile.receivers:
            received[holder] += nbytes
            if holder.cluster in relay_of:
                relayed[relay_of[holder.cluster]] += nbytes
                fan_out[holder.cluster] += nbytes
                continue
            sent[tile.contributor] += nbytes
            crossing[home, holder.cluster] += nbytes
    fan_out[home] += crossing.pop((home, home), 0)
    return Traffic(crossing, +fan_out, sent, relayed, landed, received)
