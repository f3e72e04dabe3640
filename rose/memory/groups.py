"""Several attention groups of one model over the slabs of one tenant."""

from collections.abc import Iterable, Sequence

from rose._core import Arbiter, Attachment, MappedWindow
from rose.errors import InvalidArgument
from rose.memory.geometry import NULL_BLOCKS_MIN, KVGeometry, Layout
from rose.memory.space import KVSpace
from rose.units import ceil_div


def groups_of(geometry: KVGeometry | Sequence[KVGeometry]) -> tuple[KVGeometry, ...]:
    """Return the geometries of a lane: one, or one for each attention group.

    Raises:
        InvalidArgument: there is none.
    """
    groups = (geometry,) if isinstance(geometry, KVGeometry) else tuple(geometry)
    if not groups:
        raise InvalidArgument("a lane needs the geometry of one group of layers at least")
    return groups


class KVGroups:
    """One `KVSpace` for each group of layers; they share the partition, its slabs and its header.

    A slab is of one group at a time, and changes group when nobody uses it: what a sliding window
    left behind becomes room for the layers that keep everything, and the other way round. Each
    group has ids of its own, and an allocator with all of its contract.

    Args:
        arbiter: of the pool, or what attached to it in another process.
        partition: the tenant's.
        geometries: of the layers of each group alone; several must be block-major.
        header_index: which header slab is the tenant's own.
        window: the tenant's own mapping, if it sees the pool through one.

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
        """Return how many slabs more it takes to have `blocks[i]` free blocks of every group i.

        Raises:
            InvalidArgument: not one number for each group.
        """
        if len(blocks) != len(self.spaces):
            raise InvalidArgument(f"{len(blocks)} numbers of blocks for {len(self.spaces)} groups")
        if len(self.spaces) > 1:
            return int(self.arbiter.missing_slabs(self.partition, list(blocks)))
        (space,) = self.spaces
        missing = blocks[0] - int(space.allocator.free_blocks)
        return ceil_div(max(0, missing), space.blocks_per_slab)

    def pin(self, blocks: Sequence[Iterable[int]]) -> tuple[int, ...]:
        """Hold the slabs of `blocks[i]` of every group i, as `BlockAllocator.pin`; all or none."""
        pins: list[int] = []
        try:
            for space, ids in zip(self.spaces, blocks, strict=True):
                pins.append(int(space.allocator.pin(list(ids))))
        except InvalidArgument:
            self.unpin(pins)
            raise
        return tuple(pins)

    def unpin(self, pins: Iterable[int]) -> None:
        """Let go; slabs on revocation that are empty leave inside this call."""
        for space, pin in zip(self.spaces, pins, strict=False):
            space.allocator.unpin(pin)


def _null_offsets(geometries: Sequence[KVGeometry], *, header_bytes: int) -> list[int]:
    """Return where each group's ids begin in the header, so that no two share a null block.

    Each begins at a multiple of its own block, so that it fills slabs as it would alone.
    """
    offsets: list[int] = []
    end = 0
    for geometry in geometries:
        if geometry.layout is not Layout.BLOCK_MAJOR:
            raise InvalidArgument(
                "several groups of one lane are laid out block by block: give block-major "
                "geometries, or a lane to each group"
            )
        offsets.append(ceil_div(end, geometry.id_bytes) * geometry.id_bytes)
        end = offsets[-1] + NULL_BLOCKS_MIN * geometry.id_bytes
    if end > header_bytes:
        raise InvalidArgument(
            f"the null blocks of {len(geometries)} groups take {end} bytes, and the header has "
            f"{header_bytes}: raise slab_bytes"
        )
    return offsets
