"""Manifests as protobuf, for peers, disks and signatures.

The fields of tiles are stored in columns, so that many tiles decode in few calls.
"""

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from google.protobuf.message import DecodeError

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.digests import Digest
from rose.transfer.manifest import SHA256_BYTES, Chunk, Manifest, Version
from rose.transfer.proto import weights_pb2 as pb

RUN_MAX: Final = 256
MAC_BYTES_MAX: Final = 64
TILES_MAX: Final = 1 << 20
_LAYOUT_BYTES: Final = 32
_DIGEST: Final = struct.Struct("<2Q")


def to_bytes(one: Manifest, *, is_signed: bool = True) -> bytes:
    """Encode a manifest; if not `is_signed`, without its MAC, for the signature."""
    message = manifest_to(one)
    if not is_signed:
        message.ClearField("mac")
    return bytes(message.SerializeToString(deterministic=True))


def from_bytes(content: bytes) -> Manifest:
    """Decode a manifest.

    Raises:
        CorruptData: the bytes are not a manifest.
    """
    try:
        return manifest_of(pb.Manifest.FromString(content))
    except (DecodeError, InvalidArgument) as error:
        raise CorruptData(f"these bytes are not a manifest: {error}") from error


def manifest_to(one: Manifest) -> Any:
    """Return a manifest as a protobuf message.

    Raises:
        ValueError: a field is out of range.
    """
    chunks = one.chunks
    return pb.Manifest(
        format=one.format,
        version=_version_to(one.version),
        base=None if one.base is None else _version_to(one.base),
        digest=digest_bytes(one.digest),
        base_digest=digest_bytes(one.base_digest),
        layout=bytes.fromhex(one.layout),
        tile_count=one.tile_count,
        count=one.count,
        mac=one.mac,
        tile_digests=digests_bytes(one.tile_digests),
        chunk_tile=[chunk.tile for chunk in chunks],
        chunk_nbytes=[chunk.nbytes for chunk in chunks],
        chunk_changed=[chunk.changed for chunk in chunks],
        chunk_sha256=b"".join(chunk.sha256 for chunk in chunks),
        chunk_digest=digests_bytes([chunk.digest for chunk in chunks]),
    )


def manifest_of(message: Any) -> Manifest:
    """Convert a protobuf message to a manifest.

    Raises:
        InvalidArgument: a field is invalid; the message names it.
    """
    chunks = len(message.chunk_tile)
    if max(chunks, len(message.tile_digests) // _DIGEST.size) > TILES_MAX:
        raise InvalidArgument(f"a manifest must have at most {TILES_MAX} tiles")
    if not message.HasField("version") or len(message.layout) != _LAYOUT_BYTES:
        raise InvalidArgument(f"a manifest needs a version and a layout of {_LAYOUT_BYTES} bytes")
    if len(message.mac) > MAC_BYTES_MAX:
        raise InvalidArgument(
            f"a MAC must have at most {MAC_BYTES_MAX} bytes, got {len(message.mac)}"
        )
    return Manifest(
        version=_version_of(message.version),
        base=_version_of(message.base) if message.HasField("base") else None,
        digest=as_digest(message.digest),
        base_digest=as_digest(message.base_digest),
        layout=message.layout.hex(),
        tile_count=message.tile_count,
        count=message.count,
        chunks=_chunks(message, chunks),
        tile_digests=tuple(as_digests(message.tile_digests)),
        mac=message.mac,
        format=message.format,
    )


def _chunks(message: Any, count: int) -> tuple[Chunk, ...]:
    sha256, digests = message.chunk_sha256, as_digests(message.chunk_digest)
    lengths = {len(message.chunk_nbytes), len(message.chunk_changed), len(digests)}
    size = SHA256_BYTES if message.HasField("base") else 0  # whole tiles have no SHA-256
    if lengths != {count} or len(sha256) != size * count:
        raise InvalidArgument("the columns of a manifest's chunks differ in length")
    columns = zip(
        message.chunk_tile,
        message.chunk_nbytes,
        message.chunk_changed,
        (sha256[at * size : (at + 1) * size] for at in range(count)),
        digests,
        strict=True,
    )
    return tuple(Chunk(*row) for row in columns)


def digest_bytes(digest: Digest) -> bytes:
    """Return a digest as 16 bytes.

    Raises:
        InvalidArgument: a part is not a 64-bit number.
    """
    return digests_bytes([digest])


def as_digest(content: bytes) -> Digest:
    """Read 16 bytes as a digest.

    Raises:
        InvalidArgument: the content has another size.
    """
    if len(content) != _DIGEST.size:
        raise InvalidArgument(f"a digest must have {_DIGEST.size} bytes, got {len(content)}")
    first, second = _DIGEST.unpack(content)
    return first, second


def digests_bytes(digests: Sequence[Digest]) -> bytes:
    """Return digests as one column, 16 bytes each.

    Raises:
        InvalidArgument: a part is not a 64-bit number.
    """
    try:
        return struct.pack(f"<{2 * len(digests)}Q", *chain.from_iterable(digests))
    except struct.error as error:
        raise InvalidArgument(f"digests must be 64-bit numbers: {error}") from error


def as_digests(content: bytes) -> list[Digest]:
    """Read a column of digests.

    Raises:
        InvalidArgument: the size is not a multiple of 16 bytes.
    """
    if len(content) % _DIGEST.size:
        raise InvalidArgument(
            f"digests need a multiple of {_DIGEST.size} bytes, got {len(content)}"
        )
    return list(_DIGEST.iter_unpack(content))


def _version_to(version: Version) -> Any:
    return pb.Version(run=version.run, incarnation=version.incarnation, n=version.n)


def _version_of(message: Any) -> Version:
    if len(message.run) > RUN_MAX:
        raise InvalidArgument(
            f"a run's name must have at most {RUN_MAX} characters, got {len(message.run)}"
        )
    return Version(message.run, message.incarnation, message.n)
