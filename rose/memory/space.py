"""The KV space of one tenant: its block ids, its allocator and its views of the shared pool."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rose._core import Arbiter, Attachment, MappedWindow
from rose.errors import InvalidArgument
from rose.memory.array import DeviceArray
from rose.memory.geometry import NULL_BLOCKS_MIN, KVGeometry, Layout

# On a CPU numpy's, which speaks DLPack; on a GPU rose's, which speaks the CUDA array interface.
KVArray: TypeAlias = "npt.NDArray[Any] | DeviceArray"


class KVSpace:
    """One tenant's window on the pool.

    Block ids count from the tenant's own header slab, so the first ids are its private null
    blocks: they are never lent, and no other tenant's ids reach them. All views share the bytes of
    the pool and keep it alive.

    Args:
        arbiter: of the pool, or what attached to it in another process.
        partition: the tenant's.
        geometry: of its model.
        header_index: which header slab is the tenant's own; each tenant needs another.
        window: the tenant's own mapping, if it sees the pool through one: its views are of that.
        group: which attention group of the tenant's model, if there are several; they are made in
            order and share the slabs.
        offset_bytes: where in the header slab the ids of that group begin.

    Raises:
        InvalidArgument: the geometry does not fit the slabs, or there is no such header slab.
    """

    def __init__(
        self,
        arbiter: "Arbiter | Attachment",
        partition: int,
        geometry: KVGeometry,
        *,
        header_index: int,
        window: MappedWindow | None = None,
        group: int | None = None,
        offset_bytes: int = 0,
    ) -> None:
        slab_bytes = arbiter.slab_bytes
        if not 0 <= header_index < arbiter.header_slabs:
            raise InvalidArgument(
                f"header_index {header_index}: the pool has {arbiter.header_slabs} header slabs"
            )
        blocks_per_slab = geometry.blocks_per_slab(slab_bytes)
        if blocks_per_slab < NULL_BLOCKS_MIN:
            raise InvalidArgument(
                f"slab_bytes {slab_bytes}: {geometry} has blocks of {geometry.block_bytes} bytes, "
                f"and {NULL_BLOCKS_MIN} must fit a slab"
            )
        layer_major = geometry.layout is Layout.LAYER_MAJOR
        self._arbiter = arbiter
        self._mapping = arbiter if window is None else window
        self.partition = partition
        self.geometry = geometry
        self.origin_bytes = header_index * slab_bytes + offset_bytes
        self.blocks_per_slab = blocks_per_slab
        # Behind them come those of the next group.
        self.null_blocks = range(blocks_per_slab if group is None else NULL_BLOCKS_MIN)
        make = arbiter.add_group if group else arbiter.allocator
        self.allocator = make(
            partition,
            block_bytes=geometry.id_bytes,
            origin_bytes=self.origin_bytes,
            blocks_per_slab_max=blocks_per_slab if layer_major else 0,
        )

    @property
    def null_block(self) -> int:
        """Return the id of the block that is read where there is nothing."""
        return self.null_blocks[0]

    @property
    def lendable_bytes(self) -> int:
        """Return the bytes of all slabs a tenant could ever hold."""
        return self._arbiter.slab_count * self._arbiter.slab_bytes

    def _window(self, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> KVArray:
        """Return the bytes from the tenant's byte `start` on as an array of `shape`."""
        start += self.origin_bytes
        dtype = np.dtype(dtype)
        if not self._mapping.is_on_host:
            return DeviceArray(self._mapping, self._mapping.pool_address + start, shape, dtype)
        end = start + math.prod(shape) * dtype.itemsize
        return self._mapping.pool_view()[start:end].view(dtype).reshape(shape)

    @property
    def _window_bytes(self) -> int:
        return self._arbiter.pool_bytes - self.origin_bytes

    def flat(self) -> KVArray:
        """Return all bytes from id 0 on, cut to whole ids."""
        ids = self._window_bytes // self.geometry.id_bytes
        return self._window(0, (ids * self.geometry.id_bytes,), np.uint8)

    def slab_window(self, slabs: range) -> KVArray:
        """Return all bytes of neighbouring slabs; for a tenant that holds every block of them."""
        header_bytes = self._arbiter.header_slabs * self._arbiter.slab_bytes
        start = header_bytes + slabs.start * self._arbiter.slab_bytes - self.origin_bytes
        return self._window(start, (len(slabs) * self._arbiter.slab_bytes,), np.uint8)

    @property
    def slab_bytes(self) -> int:
        """Return the bytes of one slab."""
        return int(self._arbiter.slab_bytes)

    def views(self, dtype: npt.DTypeLike = np.uint8) -> list[KVArray]:
        """Return one array per layer; row `id` of each is block `id` in that layer.

        The rows overlap with those of other layers for ids that this tenant never gets; ids from
        its allocator, and its null blocks, never leave their slab.

        Args:
            dtype: of the elements; its size divides a layer's block.

        Returns:
            `layers` arrays of shape (ids, elements in a layer's block), all of one shape: numpy's
            on a CPU, `DeviceArray` on a GPU.

        Raises:
            InvalidArgument: the layout has no layer views, or the dtype does not divide a block.
        """
        if self.geometry.layout is not Layout.LAYER_MAJOR:
            raise InvalidArgument(f"layout {self.geometry.layout.value} has no view per layer")
        stride = self.geometry.layer_block_bytes
        itemsize = np.dtype(dtype).itemsize
        if stride % itemsize:
            raise InvalidArgument(
                f"elements of {itemsize} bytes do not divide a layer's block of {stride} bytes"
            )
        layer_bytes = self.blocks_per_slab * stride
        ids = (self._window_bytes - (self.geometry.layers - 1) * layer_bytes) // stride
        return [
            self._window(layer * layer_bytes, (ids, stride // itemsize), dtype)
            for layer in range(self.geometry.layers)
        ]

    # ---- moving data

    def copy_blocks(self, from_ids: Sequence[int], to_ids: Sequence[int]) -> None:
        """Copy block `from_ids[i]` to `to_ids[i]` in every layer.

        All sources are read as they were before the call. On a GPU the copy is the engine's, on
        its own stream and with its own kernels.

        Raises:
            InvalidArgument: the ids do not pair up, or the pool is in device memory.
        """
        if len(from_ids) != len(to_ids):
            raise InvalidArgument(f"{len(from_ids)} blocks cannot be copied to {len(to_ids)}")
        if not self._mapping.is_on_host:
            raise InvalidArgument("the pool is in device memory: the engine copies its blocks")
        sources, targets = np.asarray(from_ids, np.intp), np.asarray(to_ids, np.intp)
        for rows in self._block_rows():
            rows[targets] = rows[sources]

    def _block_rows(self) -> "list[npt.NDArray[np.uint8]]":
        """Return arrays in which row `id` is all or one layer of block `id`; together all of it."""
        if self.geometry.layout is Layout.LAYER_MAJOR:
            return [np.asarray(view) for view in self.views()]
        return [np.asarray(self.flat()).reshape(-1, self.geometry.block_bytes)]

    def evacuate(
        self, slabs: Sequence[int] | None = None, *, limit: int | None = None
    ) -> dict[int, int]:
        """Move blocks together on a CPU, so that whole slabs come empty.

        A leaving slab that comes empty goes home inside the call. Nobody may write a block of this
        tenant during the call, and no step may be prepared or running on blocks of `slabs` that it
        did not pin: pinned slabs stay as they are. On a GPU an engine does the same in three steps,
        with its own copy between `allocator.plan_evacuation` and `finish_evacuation`.

        Args:
            slabs: those to empty, in this order; None: the sparsest, as far as the others have
                room.
            limit: the most blocks to move; None: no limit.

        Returns:
            The new id of each block that moved: the caller rewrites its block tables before its
            next step.

        Raises:
            InvalidArgument: the pool is in device memory; nothing has moved.
        """
        from_ids, to_ids = self.allocator.plan_evacuation(slabs, limit)
        try:
            self.copy_blocks(from_ids, to_ids)
        except InvalidArgument:
            self.allocator.cancel_evacuation(from_ids, to_ids)
            raise
        now_at = self.allocator.finish_evacuation(from_ids, to_ids)
        return {old: new for old, new in zip(from_ids, now_at, strict=True) if old != new}
