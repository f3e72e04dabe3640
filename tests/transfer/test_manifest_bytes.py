"""Manifests come back from bytes as they were, and nothing else does."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData
from rose.transfer.manifest import Chunk, Manifest
from rose.transfer.manifest_bytes import from_bytes, to_bytes
from rose.transfer.version import Version

NUMBERS = st.integers(0, (1 << 63) - 1)
DIGESTS = st.tuples(*[st.integers(0, (1 << 64) - 1)] * 2)
VERSIONS = st.builds(Version, st.text(max_size=9), NUMBERS, NUMBERS)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    count = draw(st.integers(0, 6))
    tiles = sorted(draw(st.sets(st.integers(0, count - 1), max_size=count))) if count else []
    return Manifest(
        version=draw(VERSIONS),
        base=draw(st.none() | VERSIONS),
        digest=draw(DIGESTS),
        base_digest=draw(DIGESTS),
        layout=hashlib.sha256(bytes([count])).hexdigest(),
        tile_count=count,
        count=draw(NUMBERS),
        chunks=tuple(
            Chunk(
                tile,
                draw(st.integers(1, 4 << 20)),
                draw(NUMBERS),
                draw(st.binary(min_size=32, max_size=32)),
                draw(DIGESTS),
            )
            for tile in tiles
        ),
        tile_digests=tuple(draw(DIGESTS) for _ in range(count * draw(st.integers(0, 1)))),
        mac=draw(st.binary(max_size=32)),
    )


@given(manifests())
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    assert from_bytes(to_bytes(manifest)) == manifest


@given(manifests(), st.data())
def test_other_bytes_are_refused_or_are_another_manifest(
    manifest: Manifest, data: st.DataObject
) -> None:
    content = bytearray(to_bytes(manifest))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        read = from_bytes(bytes(content))
    except CorruptData:
        return
    assert to_bytes(read) == bytes(content)


@given(manifests(), st.data())
def test_what_is_cut_off_or_too_long_is_refused(manifest: Manifest, data: st.DataObject) -> None:
    content = to_bytes(manifest)
    cut = data.draw(st.integers(0, len(content) - 1))
    for wrong in (content[:cut], content + b"\0", b""):
        with pytest.raises(CorruptData):
            from_bytes(wrong)
