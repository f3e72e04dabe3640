"""As many manifests as one reply holds: those of a large model are more than one message may be."""

from collections.abc import Sequence
from typing import Final

from rose.transfer.manifest import Manifest
from rose.units import MIB

# Half of what a message may have: one manifest alone is never more than the other half.
PAGE_BYTES: Final = 32 * MIB
# Of a manifest as a message, at most: what it has besides columns, and of each chunk and digest.
_HEADER_BYTES: Final = 2048
_CHUNK_BYTES: Final = 5 + 5 + 10 + 32 + 16
_DIGEST_BYTES: Final = 16


def page(
    manifests: Sequence[Manifest], *, bytes_max: int = PAGE_BYTES
) -> tuple[tuple[Manifest, ...], bool]:
    """Return the first manifests, at least one of them, and whether there are more."""
    nbytes = 0
    for count, one in enumerate(manifests):
        nbytes += _HEADER_BYTES
        nbytes += _CHUNK_BYTES * len(one.chunks) + _DIGEST_BYTES * len(one.tile_digests)
        if nbytes > bytes_max and count > 0:
            return tuple(manifests[:count]), True
    return tuple(manifests), False
