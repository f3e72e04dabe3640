"""The route of every tile: its contributor, the relays where it lands, and its receivers."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from rose.transfer.plan.drafts import Draft
from rose.transfer.plan.planned import Landing, PlannedTile, tile_name, width_of
from rose.transfer.plan.spec import Holder, RelayNode


class Rendezvous:
    """Assignment of tiles to the relays of one cluster, by rendezvous hashing."""

    __slots__ = ("_keys",)

    def __init__(self, relays: Iterable[RelayNode]) -> None:
        names = sorted(relay.name for relay in relays)
        self._keys = {name: blake2b(name.encode(), digest_size=32).digest() for name in names}

    def landing(self, tile: bytes) -> str | None:
        """Return the name of the relay for a tile; None if there are no relays.

        Args:
            tile: identity of the tile; other tiles do not affect the choice.
        """
        return max(self._keys, key=lambda name: _draw(tile, self._keys[name]), default=None)


def _draw(tile: bytes, key: bytes) -> int:
    return int.from_bytes(blake2b(tile, digest_size=8, key=key).digest(), "little")


def contributors(candidates: Sequence[tuple[int, ...]], weights: Sequence[int]) -> list[int]:
    """Choose the rank that sends each tile; the same input gives the same answer.

    Tiles with few candidates are assigned first, and among equals heavy tiles first. Each tile goes
    to the candidate that has the least to send so far.

    Args:
        candidates: ranks that hold each tile, ascending, at least one.
        weights: cost to send each tile, > 0.

    Returns:
        (n,) ranks, in tile order.
    """
    loads = {rank: 0 for ranks in set(candidates) for rank in ranks}
    senders = [0] * len(candidates)
    order = range(len(candidates))
    for tile in sorted(order, key=lambda one: (len(candidates[one]), -weights[one], one)):
        senders[tile] = min(candidates[tile], key=loads.__getitem__)
        loads[senders[tile]] += weights[tile]
    return senders


# Costs are counted in parts of a byte. They are whole numbers, so that their sums are the same on
# every machine.
_PARTS_PER_BYTE: Final = 16


def routed(
    drafts: Sequence[Draft],
    relays: Iterable[RelayNode],
) -> tuple[PlannedTile, ...]:
    """Return all tiles with their routes, in the order of the drafts.

    Raises:
        InvalidArgument: a dtype cannot be sent.
    """
    landings = _landings(drafts, relays)
    sends = [_sends(draft, at) for draft, at in zip(drafts, landings, strict=True)]
    weights = [_weight(draft, times) for draft, times in zip(drafts, sends, strict=True)]
    senders = contributors([draft.contributors for draft in drafts], weights)
    return tuple(
        PlannedTile(index, draft.tensor, draft.region, draft.dtype, sender, at, draft.receivers)
        for index, (draft, sender, at) in enumerate(zip(drafts, senders, landings, strict=True))
    )


def _landings(drafts: Sequence[Draft], relays: Iterable[RelayNode]) -> list[tuple[Landing, ...]]:
    clusters: dict[str, list[RelayNode]] = {}
    for relay in relays:
        clusters.setdefault(relay.cluster, []).append(relay)
    meetings = {cluster: Rendezvous(members) for cluster, members in sorted(clusters.items())}
    needing: dict[tuple[Holder, ...], list[str]] = {}  # many tiles have the same receivers
    known: dict[tuple[str, str], Landing] = {}
    found: list[tuple[Landing, ...]] = []
    for draft in drafts:
        if draft.receivers not in needing:
            there = {holder.cluster for holder in draft.receivers}
            needing[draft.receivers] = [cluster for cluster in meetings if cluster in there]
        name = tile_name(draft.tensor, draft.region)
        at = ((one, meetings[one].landing(name)) for one in needing[draft.receivers])
        found.append(
            tuple(known.setdefault((one, relay), Landing(one, relay)) for one, relay in at if relay)
        )
    return found


def _sends(draft: Draft, landings: tuple[Landing, ...]) -> int:
    """Return how often the contributor sends a tile: once per landing, once per other receiver."""
    landed = {landing.cluster for landing in landings}
    return len(landed) + sum(holder.cluster not in landed for holder in draft.receivers)


def _weight(draft: Draft, sends: int) -> int:
    """Return the cost of a tile to its contributor.

    A tile without receivers counts as sent once, because it is packed too.
    """
    size_bytes = draft.region.count * width_of(draft.tensor, draft.dtype) / 8
    return max(1, round(size_bytes * _PARTS_PER_BYTE)) * max(1, sends)
