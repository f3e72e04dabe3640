"""The order in which a borrower gives up slabs: least repeated work first."""

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

# Cost of losing a slab: whether a step in flight would be aborted; tokens to recompute; age of the
# oldest request; and the slab's own number, for a total order.
Cost: TypeAlias = tuple[bool, int, float, int]


@dataclass(frozen=True, slots=True)
class Progress:
    """The loss if a request's KV is taken.

    Args:
        slabs: slabs with KV of the request.
        tokens: tokens to recompute.
        age: a number that is larger for earlier requests, with the same unit and origin for all.
        is_in_flight: whether a step would have to be aborted.
    """

    slabs: Collection[int]
    tokens: int
    age: float
    is_in_flight: bool


def order_of_loss(slabs: Iterable[int], requests: Mapping[str, Progress]) -> list[int]:
    """Return all `slabs`, the cheapest to lose first.

    Each slab is the cheapest one after the loss of the slabs before it: once a request has lost one
    slab, losing another costs it nothing. Slabs of a step in flight come last. Among the others,
    those with the fewest tokens to recompute come first, and among equals those of the newest
    requests.

    Args:
        slabs: slabs to order.
        requests: loss by request.
    """
    left: dict[int, set[str]] = {slab: set() for slab in slabs}
    for name, one in requests.items():
        for slab in one.slabs:
            if slab in left:
                left[slab].add(name)

    def cost(slab: int) -> Cost:
        lost = [requests[name] for name in left[slab]]
        return (
            any(one.is_in_flight for one in lost),
            sum(one.tokens for one in lost),
            max((one.age for one in lost), default=0.0),
            slab,
        )

    now = {slab: cost(slab) for slab in left}
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
        for name in left.pop(slab):
            for other in requests[name].slabs:
                if other in now:
                    left[other].discard(name)
                    now[other] = cost(other)
                    heapq.heappush(heap, now[other])
    return order
