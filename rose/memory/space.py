"""The KV space of one tenant: its block ids, allocator and views of the shared pool."""

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rose._core import Arbiter, Attachment, MappedWindow
from rose.errors import InvalidArgument
from rose.memory.array import DeviceArray
from rose.memory.geometry import NULL_BLOCKS_MIN, KVGeometry, Layout

# On a CPU a NumPy array (with DLPack), on a GPU a `DeviceArray` (with the CUDA array interface).
KVArray: TypeAlias = "npt.NDArray[Any] | DeviceArray"


class KVSpace:
    """The block ids, allocator and views of one tenant.

    Block ids count from the tenant's own header slab, so the first ids are its private null blocks:
    they are never lent, and no id of another tenant refers to them. All views share the memory of
    the pool and keep it alive.

    Args:
        arbiter: arbiter of the pool, or an attachment to it in another process.
        partition: partition of the tenant.
        geometry: KV layout of the tenant's model.
        header_index: index of the tenant's header slab; each tenant needs its own.
        window: the mapping of the pool that backs the views; None: the mapping of `arbiter`.

    Raises:
        InvalidArgument: the geometry does not fit the slabs, or the header slab does not exist.
    """

    def __init__(
        self,
        arbiter: "Arbiter | Attachment",
        partition: int,
        geometry: KVGeometry,
        *,
        header_index: int,
        window: "MappedWindow | Arbiter | None" = None,
    ) -> None:
        slab_bytes = arbiter.slab_bytes
        if not 0 <= header_index < arbiter.header_slabs:
            raise InvalidArgument(
                f"header_index must be the index of a header slab, from 0 to "
                f"{arbiter.header_slabs - 1}, got {header_index}"
            )
        blocks_per_slab = geometry.blocks_per_slab(slab_bytes)
        if blocks_per_slab < NULL_BLOCKS_MIN:
            raise InvalidArgument(
                f"slab_bytes must have room for at least {NULL_BLOCKS_MIN} blocks of "
                f"{geometry.block_bytes} bytes, got {slab_bytes} for {geometry}"
            )
        layer_major = geometry.layout is Layout.LAYER_MAJOR
        self.arbiter = arbiter
        self._mapping = arbiter if window is None else window
        self.partition = partition
        self.geometry = geometry
        self.origin_bytes = header_index * slab_bytes
        self.blocks_per_slab = blocks_per_slab
        self.null_blocks = range(blocks_per_slab)
        self.allocator = arbiter.allocator(
            partition,
            block_bytes=geometry.id_bytes,
            origin_bytes=self.origin_bytes,
            blocks_per_slab_max=blocks_per_slab if layer_major else 0,
        )

    @property
    def null_block(self) -> int:
        """Return the id of the null block that is read where there is no KV."""
        return self.null_blocks[0]

    @property
    def lendable_bytes(self) -> int:
        """Return the size of all lendable slabs."""
        return self.arbiter.slab_count * self.arbiter.slab_bytes

    def _window(self, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> KVArray:
        """Return an array of `shape` that starts `start` bytes after the tenant's id 0."""
        start += self.origin_bytes
        dtype = np.dtype(dtype)
        if not self._mapping.is_on_host:
            return DeviceArray(self._mapping, self._mapping.pool_address + start, shape, dtype)
        end = start + math.prod(shape) * dtype.itemsize
        return self._mapping.pool_view()[start:end].view(dtype).reshape(shape)

    @property
    def _window_bytes(self) -> int:
        return self.arbiter.pool_bytes - self.origin_bytes

    def flat(self) -> KVArray:
        """Return all bytes of the pool from id 0 to the last whole id, (n,) uint8."""
        ids = self._window_bytes // self.geometry.id_bytes
        return self._window(0, (ids * self.geometry.id_bytes,), np.uint8)

    @property
    def slab_bytes(self) -> int:
        """Return the bytes of one slab."""
        return int(self.arbiter.slab_bytes)

    def views(self, dtype: npt.DTypeLike = np.uint8) -> list[KVArray]:
        """Return one array per layer; row `id` of each array is block `id` in that layer.

        Rows of different layers overlap only at ids that this tenant never receives, because the
        blocks of its allocator and its null blocks do not cross the end of a slab.

        Args:
            dtype: dtype of the elements; its size must divide the bytes of a layer's block.

        Returns:
            `layers` arrays of shape (ids, elements in a layer's block): numpy's on a CPU,
            `DeviceArray` on a GPU.

        Raises:
            InvalidArgument: the layout has no layer views, or the dtype does not divide a block.
        """
        if self.geometry.layout is not Layout.LAYER_MAJOR:
            raise InvalidArgument(
                f"views need layout layer_major, got {self.geometry.layout.value}: use flat()"
            )
        stride = self.geometry.layer_block_bytes
        itemsize = np.dtype(dtype).itemsize
        if stride % itemsize:
            raise InvalidArgument(
                f"the size of a dtype must divide a layer's block of {stride} bytes, got "
                f"{itemsize} bytes"
            )
        layer_bytes = self.blocks_per_slab * stride
        ids = (self._window_bytes - (self.geometry.layers - 1) * layer_bytes) // stride
        return [
            self._window(layer * layer_bytes, (ids, stride // itemsize), dtype)
            for layer in range(self.geometry.layers)
        ]
