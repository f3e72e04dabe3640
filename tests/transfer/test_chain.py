"""The choice of the next version: by base within an incarnation, by digest into another one."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.digests import Digest, TileDigests, digest_sum
from rose.transfer.manifest import Chunk, Manifest, Subscription, Version
from rose.transfer.receiving.chain import Choice, Held, next_version
from rose.transfer.tiles import Tiles

ROW = Subscription(Tiles.of(64, 64))
HALF = Subscription(Tiles.of(64, 32), [1])
NOBODY = Version("", 0, 0)


def digest_of(n: int) -> Digest:
    return (n * 1000 + 7, n)


def link(n: int, incarnation: int = 1, run: str = "r") -> Manifest:
    """Return the version `n`, made from the one before."""
    return Manifest(
        Version(run, incarnation, n),
        Version(run, incarnation, n - 1),
        digest_of(n),
        digest_of(n - 1),
        ROW.tiles.layout,
        1,
        64,
        (Chunk(0, 10, 1, bytes(32), digest_of(n)),),
    )


def opening(n: int, incarnation: int, bits: int) -> Manifest:
    """Return what an incarnation begins with: the bits of version `bits` under a new name."""
    version = Version("r", incarnation, n)
    digest = digest_of(bits)
    return Manifest(version, version, digest, digest, ROW.tiles.layout, 1, 64, (), (digest,))


def whole(n: int, incarnation: int = 1) -> Manifest:
    chunks = tuple(replace(one, sha256=b"") for one in link(n).chunks)
    return replace(link(n, incarnation), base=None, base_digest=(0, 0), chunks=chunks)


def held(n: int, incarnation: int = 1) -> Held:
    return Held(Version("r", incarnation, n), digest_of(n))


@given(order=st.randoms(use_true_random=False), at=st.integers(0, 9))
def test_next_link_is_found_among_duplicates_in_any_order(order: random.Random, at: int) -> None:
    offered = [link(n) for n in range(1, 11)] * 2 + [opening(0, 1, 0)]
    order.shuffle(offered)
    assert next_version(held(at), offered, ROW) == link(at + 1)
    assert next_version(held(10), offered, ROW) is Choice.WAIT


def test_gaps_need_whole_tiles_and_dead_incarnations_are_ignored() -> None:
    corrupted = Held(Version("r", 1, 3), (1, 1))
    for has, offered, chosen in [
        (held(3), [link(5), link(6)], Choice.SNAPSHOT),  # a gap
        (held(3), [], Choice.WAIT),
        (corrupted, [link(4)], Choice.SNAPSHOT),
        (held(20, 2), [link(21, 1), link(22, 1)], Choice.WAIT),
        (held(20, 2), [link(21, 1), link(21, 2)], link(21, 2)),
        (held(20, 2), [whole(25, 1)], Choice.WAIT),
        # An older incarnation is dead as soon as there is a newer one.
        (held(3), [link(4, 1), opening(10, 2, 1)], Choice.SNAPSHOT),
    ]:
        assert next_version(has, offered, ROW) == chosen


def test_new_incarnation_is_entered_by_its_bits() -> None:
    same_bits = next_version(held(5), [opening(9, 2, 5)], ROW)
    assert isinstance(same_bits, Manifest)
    assert same_bits.version == Version("r", 2, 9)
    assert same_bits.base == Version("r", 1, 5)
    assert same_bits.chunks == ()
    by_its_base = replace(link(10, 2), base_digest=digest_of(5))
    assert next_version(held(5), [opening(9, 2, 5), by_its_base], ROW) == by_its_base
    assert next_version(held(5), [opening(9, 2, 4), link(10, 2)], ROW) is Choice.SNAPSHOT


def test_newcomer_with_the_bits_of_a_version_needs_nothing() -> None:
    newcomer = Held(NOBODY, digest_of(4))
    chosen = next_version(newcomer, [link(n) for n in range(1, 5)], ROW)
    assert isinstance(chosen, Manifest)
    assert (chosen.version.n, chosen.chunks) == (4, ())
    behind = next_version(newcomer, [link(n) for n in range(1, 8)], ROW)
    assert isinstance(behind, Manifest)
    assert behind == link(5)
    assert next_version(Held(NOBODY, (9, 9)), [link(1)], ROW) is Choice.SNAPSHOT


def merged(n: int, base_n: int) -> Manifest:
    """Return an update over several versions."""
    return replace(link(n), base=Version("r", 1, base_n), base_digest=digest_of(base_n))


@given(order=st.randoms(use_true_random=False))
def test_longest_update_from_what_is_held_is_taken(order: random.Random) -> None:
    offered = [link(n) for n in range(1, 9)] + [
        merged(4, 0),
        merged(8, 4),
        merged(8, 0),
        merged(6, 4),
    ]
    order.shuffle(offered)
    assert next_version(held(0), offered, ROW) == merged(8, 0)
    assert next_version(held(4), offered, ROW) == merged(8, 4)
    assert next_version(held(5), offered, ROW) == link(6)
    assert next_version(held(3), [merged(8, 0), link(8)], ROW) is Choice.SNAPSHOT


def test_part_of_the_weights_follows_by_name_and_enters_by_its_tiles() -> None:
    """A receiver of one tile of two cannot use the digest of all weights."""
    parts = ((5, 6), (7, 8))
    layout = HALF.tiles.layout
    total = digest_sum(dict(enumerate(parts)))
    own = digest_sum({1: parts[1]})
    first = Version("r", 1, 1)
    begun = Manifest(first, first, total, total, layout, 2, 64, (), parts)
    step = replace(link(2), base=first, base_digest=total, layout=layout, tile_count=2)
    newcomer = Held(NOBODY, own)
    chosen = next_version(newcomer, [begun, step], HALF)
    assert isinstance(chosen, Manifest)
    assert (chosen.version, chosen.chunks, chosen.digest) == (first, (), own)
    assert next_version(Held(first, own), [begun, step], HALF) == step
    assert next_version(Held(NOBODY, total), [begun, step], HALF) is Choice.SNAPSHOT
    assert next_version(Held(NOBODY, total), [step], HALF) is Choice.SNAPSHOT


def test_row_cut_otherwise_is_not_taken() -> None:
    assert next_version(held(3), [link(4)], Subscription(Tiles.of(64, 32))) is Choice.WAIT


def summed(parts: list[Digest]) -> Digest:
    return digest_sum(dict(enumerate(parts)))


parts = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1)


@given(parts=parts, data=st.data())
def test_total_with_changes_is_the_sum_of_the_parts(
    parts: list[Digest], data: st.DataObject
) -> None:
    digests = TileDigests(dict(enumerate(parts)))
    where = data.draw(st.sets(st.integers(0, len(parts) - 1)))
    fresh = {tile: (tile * 2**60 % 2**64, 2**64 - 1 - tile) for tile in where}
    after = [fresh.get(tile, part) for tile, part in enumerate(parts)]
    assert digests.total_with(fresh) == summed(after)
    assert digests.total == summed(parts)
    digests.update(fresh)
    assert digests.total == summed(after)
    assert [digests[tile] for tile in range(len(digests))] == after
