"""The slabs that a borrower's steps pin."""

from collections.abc import Iterable

from rose.executor import RolloutLane


class Pins:
    """Follows the pins of a lane from now on."""

    def __init__(self, lane: RolloutLane) -> None:
        self._lane = lane
        self._pin, self._unpin = lane.pin, lane.unpin
        self._slabs: dict[int, set[int]] = {}
        lane.pin, lane.unpin = self._pinned, self._unpinned

    @property
    def slabs(self) -> set[int]:
        return {slab for slabs in self._slabs.values() for slab in slabs}

    def _pinned(self, blocks: Iterable[int]) -> int:
        ids = list(blocks)
        pin = self._pin(ids)
        self._slabs[pin] = set(self._lane.kv.allocator.slabs_of(ids))
        return pin

    def _unpinned(self, pin: int) -> None:
        self._unpin(pin)
        del self._slabs[pin]
