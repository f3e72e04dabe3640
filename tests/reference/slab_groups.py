"""Groups of layers that share slabs: what is free for whom, counted slab by slab."""

from dataclasses import dataclass, field


@dataclass
class Groups:
    """blocks[g] is how many blocks of group g a slab holds."""

    blocks: tuple[int, ...]
    # By slab that is there: whose blocks are in it, as (group, block).
    slabs: dict[int, set[tuple[int, int]]] = field(default_factory=dict)

    def of(self, slab: int) -> int | None:
        return next((group for group, _ in self.slabs[slab]), None)

    def loose(self, group: int) -> int:
        """What is left in slabs that the group has blocks in."""
        return sum(
            self.blocks[group] - len(held)
            for slab, held in self.slabs.items()
            if self.of(slab) == group
        )

    def empty(self) -> int:
        return sum(not held for held in self.slabs.values())

    def free(self, group: int) -> int:
        return self.loose(group) + self.empty() * self.blocks[group]

    def missing_slabs(self, wanted: list[int]) -> int:
        slabs = 0
        for group, count in enumerate(wanted):
            left = count - self.loose(group)
            while left > 0:
                slabs += 1
                left -= self.blocks[group]
        return max(0, slabs - self.empty())
