"""The way of every tile: who sends it, where it lands, and who has it then."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rose.errors import check
from rose.transfer.plan.balance import contributors
from rose.transfer.plan.drafts import Draft
from rose.transfer.plan.dtypes import width_of
from rose.transfer.plan.identity import tile_name
from rose.transfer.plan.members import Holder, Relay
from rose.transfer.plan.planned import Landing, PlannedTile
from rose.transfer.plan.rendezvous import Rendezvous
from rose.transfer.plan.spec import Region

# Expected bytes are no whole numbers; loads are, so that their sums are the same everywhere.
_PARTS_PER_BYTE: Final = 16


def routed(
    drafts: Sequence[Draft],
    relays: Iterable[Relay],
    *,
    expected: Mapping[tuple[str, Region], float],
    settled: Mapping[tuple[str, Region], int],
) -> tuple[PlannedTile, ...]:
    """Give every tile its way.

    Args:
        drafts: the tiles.
        relays: of all clusters.
        expected: bytes of an update of a tile, where something is known.
        settled: contributors that stay as they are, where they hold the tile.

    Raises:
        InvalidArgument: a dtype has no width.
    """
    landings = _landings(drafts, relays)
    sends = [_sends(draft, at) for draft, at in zip(drafts, landings, strict=True)]
    weights = _weights(drafts, expected, sends)
    senders = _senders(drafts, weights, settled)
    return tuple(
        PlannedTile(index, draft.tensor, draft.region, draft.dtype, sender, at, draft.receivers)
        for index, (draft, sender, at) in enumerate(zip(drafts, senders, landings, strict=True))
    )


def _landings(drafts: Sequence[Draft], relays: Iterable[Relay]) -> list[tuple[Landing, ...]]:
    clusters: dict[str, list[Relay]] = {}
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
    """Return how often the contributor sends a tile: once to a relay, else to each receiver."""
    landed = {landing.cluster for landing in landings}
    return len(landed) + sum(holder.cluster not in landed for holder in draft.receivers)


def _weights(
    drafts: Sequence[Draft], expected: Mapping[tuple[str, Region], float], sends: Sequence[int]
) -> list[int]:
    """Return what a tile costs its contributor; one nobody wants is packed too, and costs that."""
    sizes = [draft.region.count * width_of(draft.tensor, draft.dtype) / 8 for draft in drafts]
    seen = [expected.get((draft.tensor, draft.region)) for draft in drafts]
    known = [(size, one) for size, one in zip(sizes, seen, strict=True) if one is not None]
    density = sum(one for _, one in known) / sum(size for size, _ in known) if known else 1.0
    costs = (size * density if one is None else one for size, one in zip(sizes, seen, strict=True))
    return [
        max(1, round(cost * _PARTS_PER_BYTE)) * max(1, times)
        for cost, times in zip(costs, sends, strict=True)
    ]


def _senders(
    drafts: Sequence[Draft], weights: Sequence[int], settled: Mapping[tuple[str, Region], int]
) -> list[int]:
    senders: dict[int, int] = {}
    loads: dict[int, int] = {}
    for tile, draft in enumerate(drafts):
        rank = settled.get((draft.tensor, draft.region))
        if rank in draft.contributors:
            senders[tile] = rank
            loads[rank] = loads.get(rank, 0) + weights[tile]
    free = [tile for tile in range(len(drafts)) if tile not in senders]
    chosen = contributors(
        [drafts[tile].contributors for tile in free],
        [weights[tile] for tile in free],
        loads=loads,
    )
    senders.update(zip(free, chosen, strict=True))
    check(len(senders) == len(drafts), "a tile has no contributor")
    return [senders[tile] for tile in range(len(drafts))]
