"""The order in which a borrower gives up slabs: least repeated work first."""

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

# Cost of losing a slab: whether a step in flight would be aborted; tokens to recompute; age of the
# oldest request; and the slab's own number, for a total order.
Cost: TypeAlias = tuple[bool, int, float, int]


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """One request's blocks, and the loss if their KV is taken.

    Args:
        blocks: blocks with KV of the request.
        tokens: tokens to recompute.
        age: a number that is larger for earlier requests, with the same unit and origin for all.
        is_in_flight: whether a step would have to be aborted.
    """

    blocks: Collection[int]
    tokens: int
    age: float
    is_in_flight: bool


def order_of_loss(
    slabs: Iterable[int],
    requests: Sequence[Progress],
    slabs_of: Callable[[Sequence[int]], Sequence[int]],
) -> list[int]:
    """Return all `slabs`, the cheapest to lose first.

    Each slab is the cheapest one after the loss of the slabs before it: once a request has lost one
    slab, losing another costs it nothing. Slabs of a step in flight come last. Among the others,
    those with the fewest tokens to recompute come first, and among equals those of the newest
    requests.

    Args:
        slabs: slabs on loan.
        requests: all requests with KV in these slabs.
        slabs_of: function that returns the slab of each block.
    """
    users: dict[int, set[Progress]] = {slab: set() for slab in slabs}
    held: dict[Progress, set[int]] = {request: set() for request in requests}
    owned = [(request, block) for request in requests for block in request.blocks]
    found = slabs_of([block for _, block in owned])
    for (request, _), slab in zip(owned, found, strict=True):
        if slab in users:
            users[slab].add(request)
            held[request].add(slab)

    def cost(slab: int) -> Cost:
        lost = users[slab]
        return (
            any(one.is_in_flight for one in lost),
            sum(one.tokens for one in lost),
            max((one.age for one in lost), default=0.0),
            slab,
        )

    now = {slab: cost(slab) for slab in users}
    heap = list(now.values())
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        cheapest = heapq.heappop(heap)
        slab = cheapest[-1]
        if now.get(slab) != cheapest:
            continue  # An old entry: the slab is chosen already, or has a newer entry.
        order.append(slab)
        del now[slab]
        for request in users.pop(slab):
            for other in held[request] & now.keys():
                users[other].discard(request)
                now[other] = cost(other)
                heapq.heappush(heap, now[other])
    return order
