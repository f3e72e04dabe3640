"""Messages between processes survive a round trip, and malformed ones are refused."""

import dataclasses
import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import manifest_bytes
from rose.transfer.manifest import CHUNK_BYTES_MAX, Chunk, Manifest, Version
from rose.transfer.proto import weights_pb2 as pb
from rose.transfer.signing import fingerprint
from rose.transfer.wire import messages
from rose.transfer.wire.messages import (
    Empty,
    GatherWords,
    HelloReply,
    KeptHello,
    ManifestsReply,
    PartAsk,
    PartDigests,
    PartFrame,
    RelayPlace,
    ReportRequest,
    SnapshotRequest,
    TensorEntry,
    WaitRequest,
    decode,
    encode,
)

U64 = st.integers(0, 2**64 - 1)
N = st.integers(0, 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=256)
DIGESTS = st.tuples(U64, U64)
TILES = st.frozensets(st.integers(0, 2**32 - 1), max_size=8).map(lambda one: tuple(sorted(one)))
LAYOUTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
VERSIONS = st.builds(Version, NAMES, N, N)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    tile_count = draw(st.integers(0, 8))
    tiles = [tile for tile in range(tile_count) if draw(st.booleans())]
    base = draw(st.none() | VERSIONS)
    size = 0 if base is None else 32
    chunks = [
        Chunk(
            tile,
            draw(st.integers(1, CHUNK_BYTES_MAX)),
            draw(N),
            draw(st.binary(min_size=size, max_size=size)),
            draw(DIGESTS),
        )
        for tile in tiles
    ]
    says_all = draw(st.booleans())
    return Manifest(
        version=draw(VERSIONS),
        base=base,
        digest=draw(DIGESTS),
        base_digest=draw(DIGESTS),
        layout=draw(LAYOUTS),
        tile_count=tile_count,
        count=draw(N),
        chunks=tuple(chunks),
        tile_digests=tuple(draw(DIGESTS) for _ in range(tile_count)) if says_all else (),
        mac=draw(st.binary(max_size=64)),
    )


PORTS = st.integers(0, 2**16 - 1)
MESSAGES = {
    Empty: st.just(Empty()),
    HelloReply: st.builds(
        HelloReply,
        NAMES,
        st.sampled_from(messages.ROLES),
        st.just("") | LAYOUTS,
        PORTS,
        st.lists(st.builds(RelayPlace, NAMES, TILES), max_size=3).map(tuple),
        st.lists(
            st.builds(TensorEntry, NAMES, NAMES, st.lists(N, max_size=4).map(tuple)), max_size=3
        ).map(tuple),
    ),
    WaitRequest: st.builds(
        WaitRequest, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)
    ),
    SnapshotRequest: st.builds(SnapshotRequest, st.none() | N, TILES),
    ManifestsReply: st.builds(ManifestsReply, st.lists(manifests(), max_size=3).map(tuple), PORTS),
    ReportRequest: st.builds(ReportRequest, NAMES, N, st.booleans(), DIGESTS),
    GatherWords: st.builds(GatherWords, st.binary(max_size=99)),
    KeptHello: st.builds(KeptHello, st.binary(max_size=99), st.binary(max_size=32)),
    PartAsk: st.builds(PartAsk, U64, U64, U64, st.just("") | LAYOUTS, NAMES, TILES),
    PartDigests: TILES.flatmap(
        lambda tiles: st.builds(PartDigests, st.just(tiles), st.tuples(*[DIGESTS] * len(tiles)))
    ),
    PartFrame: st.builds(PartFrame, st.integers(0, 2**32 - 1), st.binary(max_size=99)),
}
KINDS = sorted(MESSAGES, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_messages_survive_a_round_trip(kind: type, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    assert decode(kind, encode(message)) == message


def test_every_message_is_tried() -> None:
    assert set(messages._KINDS) == set(MESSAGES)


def plain() -> Manifest:
    sha256 = hashlib.sha256(b"frame").digest()
    chunks = tuple(Chunk(tile, 5, 1, sha256, (tile, 2**64 - 1)) for tile in (0, 2))
    version, base = Version("run", 1, 5), Version("run", 1, 4)
    return Manifest(version, base, (1, 2), (3, 4), "ab" * 32, 3, 100, chunks, mac=b"m" * 32)


@given(manifests())
def test_manifest_on_disk_is_its_message(manifest: Manifest) -> None:
    content = manifest_bytes.to_bytes(manifest)
    assert manifest_bytes.from_bytes(content) == manifest
    with pytest.raises(CorruptData):
        manifest_bytes.from_bytes(content[:-1])


def field(number: int, content: bytes | int | list[int]) -> bytes:
    """Return a field as proto3 packs it, by its own rules: a default is left out."""
    if isinstance(content, list):
        content = b"".join(map(varint, content))
    if not content:
        return b""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    more, last = value >> 7, value & 127
    return bytes([last | 128]) + varint(more) if more else bytes([last])


def test_fingerprint_is_the_sha256_of_the_fields_as_the_document_says() -> None:
    one = dataclasses.replace(plain(), tile_digests=((5, 6), (7, 8), (9, 2**63)))

    def digests(*some: tuple[int, int]) -> bytes:
        return b"".join(half.to_bytes(8, "little") for digest in some for half in digest)

    def version(name: Version) -> bytes:
        return field(1, name.run.encode()) + field(2, name.incarnation) + field(3, name.n)

    assert one.base is not None
    fields = [
        3, version(one.version), version(one.base), digests(one.digest), digests(one.base_digest),
        bytes.fromhex(one.layout), one.tile_count, one.count, b"", digests(*one.tile_digests),
        [c.tile for c in one.chunks], [c.nbytes for c in one.chunks],
        [c.changed for c in one.chunks], b"".join(c.sha256 for c in one.chunks),
        digests(*(c.digest for c in one.chunks)),
    ]  # fmt: skip
    packed = b"".join(field(number, one) for number, one in enumerate(fields, 1))
    assert fingerprint(one) == hashlib.sha256(packed).digest()


def no_version(manifest: pb.Manifest) -> None:
    manifest.ClearField("version")


def longer(field: str, by: bytes = b"x") -> Callable[[pb.Manifest], None]:
    return lambda manifest: setattr(manifest, field, getattr(manifest, field) + by)


@pytest.mark.parametrize(
    "spoil",
    [
        no_version,
        longer("digest"),
        longer("base_digest"),
        longer("layout"),
        longer("chunk_sha256"),
        longer("chunk_sha256", bytes(32)),
        longer("chunk_digest"),
        longer("chunk_digest", bytes(16)),
        longer("tile_digests"),
        longer("tile_digests", bytes(16)),
        longer("mac", bytes(33)),
        lambda one: one.chunk_tile.append(1),
        lambda one: one.chunk_nbytes.append(1),
        lambda one: one.chunk_changed.append(1),
        lambda one: one.chunk_tile.__setitem__(1, 0),
        lambda one: one.chunk_tile.__setitem__(1, 3),
        lambda one: one.chunk_nbytes.__setitem__(1, CHUNK_BYTES_MAX + 1),
        lambda one: one.chunk_nbytes.__setitem__(1, 0),
        lambda one: setattr(one, "format", 1),
        lambda one: setattr(one.version, "n", 2**63),
        lambda one: setattr(one.version, "run", "x" * 300),
    ],
)
def test_manifest_with_one_wrong_field_is_refused(spoil: Callable[[pb.Manifest], None]) -> None:
    reply = pb.ManifestsReply.FromString(encode(ManifestsReply((plain(),), 5)))
    assert decode(ManifestsReply, reply.SerializeToString()).manifests == (plain(),)
    spoil(reply.manifests[0])
    with pytest.raises(CorruptData):
        decode(ManifestsReply, reply.SerializeToString())


def test_message_of_another_version_or_of_none_is_refused() -> None:
    for kind in KINDS:
        its = messages._KINDS[kind]
        for content in [b"", its(format=messages.FORMAT + 1).SerializeToString()]:
            with pytest.raises(InvalidArgument, match="version"):
                decode(kind, content)


def test_numbers_and_names_are_bounded() -> None:
    for wrong in [
        pb.SnapshotRequest(format=messages.FORMAT, tiles=[2, 1]),
        pb.SnapshotRequest(format=messages.FORMAT, tiles=[1, 1]),
        pb.SnapshotRequest(format=messages.FORMAT, n=2**63),
    ]:
        with pytest.raises(CorruptData):
            decode(SnapshotRequest, wrong.SerializeToString())
    for wrong in [
        pb.HelloReply(format=messages.FORMAT, role="stranger"),
        pb.HelloReply(format=messages.FORMAT, role="relay", name="x" * 257),
        pb.HelloReply(format=messages.FORMAT, role="relay", layout=b"x"),
        pb.HelloReply(format=messages.FORMAT, role="relay", chunk_port=1 << 16),
        pb.HelloReply(format=messages.FORMAT, role="relay", relays=[pb.Relay()] * 1025),
        pb.HelloReply(format=messages.FORMAT, role="relay", tensors=[pb.Tensor(shape=[1] * 17)]),
    ]:
        with pytest.raises(CorruptData):
            decode(HelloReply, wrong.SerializeToString())
    many = pb.ManifestsReply(
        format=messages.FORMAT, manifests=[pb.Manifest()] * (messages.MANIFESTS_MAX + 1)
    )
    with pytest.raises(CorruptData, match="manifests"):
        decode(ManifestsReply, many.SerializeToString())


def test_fields_out_of_range_are_not_sent() -> None:
    for wrong in [
        ReportRequest("\ud800", 1, True, (1, 2)),
        ReportRequest("x", -1, True, (1, 2)),
        ReportRequest("x", 1, True, (1, 2**64)),
        ManifestsReply((dataclasses.replace(plain(), version=Version("\ud800", 1, 5)),), 1),
    ]:
        with pytest.raises(InvalidArgument):
            encode(wrong)


def test_manifest_of_very_many_tiles_is_a_few_large_fields() -> None:
    tiles = 120_000
    sha256 = hashlib.sha256(b"frame").digest()
    chunks = tuple(Chunk(tile, 5, 1, sha256, (tile, tile)) for tile in range(tiles))
    digests = tuple((tile, tile) for tile in range(tiles))
    large = dataclasses.replace(plain(), chunks=chunks, tile_count=tiles, tile_digests=digests)
    content = encode(ManifestsReply((large,), 5))
    assert len(content) < 80 * tiles < messages.REPLY_BYTES_MAX
    assert decode(ManifestsReply, content).manifests == (large,)
    snapshot = SnapshotRequest(None, tuple(range(2 * tiles)))
    assert len(encode(snapshot)) < messages.REQUEST_BYTES_MAX
