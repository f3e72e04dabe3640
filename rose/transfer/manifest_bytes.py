"""Manifests as bytes, for disks: every field, those of tiles in the packing of the fingerprint.

Little-endian. Whoever reads them knows by a checksum around them that they are whole; a manifest
that cannot be is refused all the same.
"""

import struct
from typing import Final

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.digests import Digest
from rose.transfer.manifest import CHUNK_ROW, DIGEST_ROW, Chunk, Manifest
from rose.transfer.version import Version

_MAGIC: Final = b"ROSEMNF2"
# incarnation, n, bytes of the run's name behind it
_VERSION: Final = struct.Struct("<QQQ")
# has a base, digests after and before, layout, tiles, elements, chunks, digests of tiles, MAC
_FIELDS: Final = struct.Struct("<Q2Q2Q32sQQQQQ")

_NO_BASE: Final = Version("", 0, 0)


def to_bytes(manifest: Manifest) -> bytes:
    """Return all of a manifest."""
    base = manifest.base
    parts = [
        _MAGIC,
        _FIELDS.pack(
            base is not None,
            *manifest.digest,
            *manifest.base_digest,
            bytes.fromhex(manifest.layout),
            manifest.tile_count,
            manifest.count,
            len(manifest.chunks),
            len(manifest.tile_digests),
            len(manifest.mac),
        ),
    ]
    for one in (manifest.version, base or _NO_BASE):
        run = one.run.encode()
        parts += (_VERSION.pack(one.incarnation, one.n, len(run)), run)
    parts += manifest.packed_tiles()
    parts.append(manifest.mac)
    return b"".join(parts)


def from_bytes(content: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        CorruptData: the bytes are not those that `to_bytes` gave.
    """
    try:
        manifest = _read(memoryview(content))
    except (struct.error, ValueError) as error:  # InvalidArgument is a ValueError
        raise CorruptData(f"these bytes are no manifest: {error}") from error
    return manifest


def _read(content: memoryview) -> Manifest:
    if bytes(content[: len(_MAGIC)]) != _MAGIC:
        raise InvalidArgument("they begin with another magic")
    at = len(_MAGIC)
    has_base, *numbers = _FIELDS.unpack_from(content, at)
    layout, tile_count, count, chunks, digests, mac_bytes = numbers[4:]
    at += _FIELDS.size
    version, at = _read_version(content, at)
    base, at = _read_version(content, at)
    if has_base not in {0, 1} or (not has_base and base != _NO_BASE):
        raise InvalidArgument("they half name a base")
    # Before anything is made of what they say: so many bytes are there, and no more.
    if len(content) - at != chunks * CHUNK_ROW.size + digests * DIGEST_ROW.size + mac_bytes:
        raise InvalidArgument(f"there are {len(content)} of them")
    chunks_end = at + chunks * CHUNK_ROW.size
    digests_end = chunks_end + digests * DIGEST_ROW.size
    return Manifest(
        version=version,
        base=base if has_base else None,
        digest=_digest(numbers[:2]),
        base_digest=_digest(numbers[2:4]),
        layout=layout.hex(),
        tile_count=tile_count,
        count=count,
        chunks=tuple(
            Chunk(tile, nbytes, changed, sha256, (first, second))
            for tile, nbytes, changed, sha256, first, second in CHUNK_ROW.iter_unpack(
                content[at:chunks_end]
            )
        ),
        tile_digests=tuple(
            _digest(pair) for pair in DIGEST_ROW.iter_unpack(content[chunks_end:digests_end])
        ),
        mac=bytes(content[digests_end:]),
    )


def _read_version(content: memoryview, at: int) -> tuple[Version, int]:
    incarnation, n, run_bytes = _VERSION.unpack_from(content, at)
    at += _VERSION.size
    return Version(bytes(content[at : at + run_bytes]).decode(), incarnation, n), at + run_bytes


def _digest(pair: tuple[int, ...] | list[int]) -> Digest:
    return pair[0], pair[1]
