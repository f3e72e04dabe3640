"""Several attention groups of one model in the slabs of one tenant."""

from collections.abc import Iterable, Sequence

from rose._core import Arbiter, Attachment, MappedWindow
from rose.errors import InvalidArgument
from rose.memory.geometry import NULL_BLOCKS_MIN, KVGeometry, Layout
from rose.memory.space import KVSpace
from rose.units import ceil_div


def groups_of(geometry: KVGeometry | Sequence[KVGeometry]) -> tuple[KVGeometry, ...]:
    """Return the geometries of an engine, one for each attention group.

    Raises:
        InvalidArgument: the sequence is empty.
    """
    groups = (geometry,) if isinstance(geometry, KVGeometry) else tuple(geometry)
    if not groups:
        raise InvalidArgument("an engine needs at least one KVGeometry, got an empty sequence")
    return groups


class KVGroups:
    """One `KVSpace` per attention group; all share the partition, its slabs and its header.

    A slab belongs to one group at a time, and may change groups when it is empty: memory freed by a
    sliding window becomes room for full-attention layers, and vice versa. Each group has its own
    ids and allocator.

    Args:
        arbiter: arbiter of the pool, or an attachment to it in another process.
        partition: partition of the tenant.
        geometries: KV layout of each group's layers; if there are several groups, all must be
            block-major.
        header_index: index of the tenant's header slab.
        window: the tenant's own mapping of the pool, which backs its views; None: the mapping of
            `arbiter`.

    Raises:
        InvalidArgument: a geometry does not fit, or null blocks do not fit the header.
    """

    def __init__(
        self,
        arbiter: "Arbiter | Attachment",
        partition: int,
        geometries: Sequence[KVGeometry],
        *,
        header_index: int,
        window: MappedWindow | None = None,
    ) -> None:
        self.arbiter = arbiter
        self.partition = partition
        if len(geometries) == 1:
            self.spaces: tuple[KVSpace, ...] = (
                KVSpace(
                    arbiter, partition, geometries[0], header_index=header_index, window=window
                ),
            )
            return
        offsets = _null_offsets(geometries, header_bytes=arbiter.slab_bytes)
        self.spaces = tuple(
            KVSpace(
                arbiter,
                partition,
                geometry,
                header_index=header_index,
                window=window,
                group=group,
                offset_bytes=offset,
            )
            for group, (geometry, offset) in enumerate(zip(geometries, offsets, strict=True))
        )

    def missing_slabs(self, blocks: Sequence[int]) -> int:
        """Return how many slabs must be added so that every group i has `blocks[i]` free blocks.

        Raises:
            InvalidArgument: the length of `blocks` is not the number of groups.
        """
        if len(blocks) != len(self.spaces):
            raise InvalidArgument(
                f"blocks must have {len(self.spaces)} numbers, one per group, got {len(blocks)}"
            )
        if len(self.spaces) > 1:
            return int(self.arbiter.missing_slabs(self.partition, list(blocks)))
        (space,) = self.spaces
        missing = blocks[0] - int(space.allocator.free_blocks)
        return ceil_div(max(0, missing), space.blocks_per_slab)

    def pin(self, blocks: Sequence[Iterable[int]]) -> tuple[int, ...]:
        """Pin the slabs of the blocks `blocks[i]` of every group i, as in `BlockAllocator.pin`.

        On an error nothing is pinned.
        """
        pins: list[int] = []
        try:
            for space, ids in zip(self.spaces, blocks, strict=True):
                pins.append(int(space.allocator.pin(list(ids))))
        except InvalidArgument:
            self.unpin(pins)
            raise
        return tuple(pins)

    def unpin(self, pins: Iterable[int]) -> None:
        """Drop pins. Empty slabs under revocation leave the partition before this returns."""
        for space, pin in zip(self.spaces, pins, strict=False):
            space.allocator.unpin(pin)


def _null_offsets(geometries: Sequence[KVGeometry], *, header_bytes: int) -> list[int]:
    """Return the offset in bytes of each group's first id; null blocks do not overlap.

    Each offset is a multiple of the group's block size, so the group's blocks have the same
    positions in a slab as without other groups.
    """
    offsets: list[int] = []
    end = 0
    for geometry in geometries:
        if geometry.layout is not Layout.BLOCK_MAJOR:
            raise InvalidArgument(
                f"with several attention groups every geometry must be block-major, got layout "
                f"{geometry.layout.value}"
            )
        offsets.append(ceil_div(end, geometry.id_bytes) * geometry.id_bytes)
        end = offsets[-1] + NULL_BLOCKS_MIN * geometry.id_bytes
    if end > header_bytes:
        raise InvalidArgument(
            f"slab_bytes must be at least {end}, the size of the null blocks of "
            f"{len(geometries)} groups, got {header_bytes}"
        )
    return offsets
