"""What both twins of the codec on a GPU must do; each takes the twin it looks at.

Every twin must have the bits of `tests/reference/delta.py`, and of the C++ core where that is slow.
"""

import itertools
from typing import Any, Final

import numpy as np

from rose import _core
from tests.gpu.twins import NO_BAD_BLOCK, Bits, Packed
from tests.reference import delta as reference

LARGE: Final = 65_536
SMALL: Final = 16_384
BOTH: Final = (LARGE, SMALL)
MASK64: Final = (1 << 64) - 1
# Fields of an entry that make its block corrupt.
CORRUPT: Final = (
    {"kind": 7},
    {"kind": 15},
    {"changed": 0},
    {"changed": SMALL + 1},
    {"changed": 0xFFFFF},
    {"listed": 0xFFFFF},
    {"words": 0},
    {"words": 0xFFFFF},
)
_FIELD: Final = 0xFFFFF
_FIELDS: Final = {
    "kind": (0, 15),
    "changed": (4, _FIELD),
    "listed": (24, _FIELD),
    "words": (44, _FIELD),
}


def two_versions(
    rng: np.random.Generator, count: int, *, share: float, step_share: float = 0.89, width: int = 16
) -> tuple[Bits, Bits]:
    """Return new and old bits; all patterns occur, NaN and subnormals too."""
    dtype = np.dtype(f"u{width // 8}")
    span = 1 << width
    old = rng.integers(0, span, count, dtype=dtype)
    near = rng.integers(2, 20, count, dtype=np.int64)
    far = rng.integers(2, span // 2 + 1, count, dtype=np.int64)
    leap = np.where(rng.random(count) < 0.8, near, far)
    size = np.where(rng.random(count) < step_share, 1, leap)
    move = np.where(rng.random(count) < 0.5, size, span - size).astype(dtype)
    move[rng.random(count) >= share] = 0
    return old + move, old


def arena_for(count: int, block_elements: int, width: int = 16) -> int:
    """Return room for any delta of `count` elements."""
    full, rest = divmod(count, block_elements)
    return full * (block_elements * width // 32) + -(-rest * width // 32)


def packed_whole(twin: Any, new: Bits, old: Bits, block_elements: int, **more: Any) -> Packed:
    arena_words = arena_for(len(new), block_elements, 8 * new.itemsize)
    packed: Packed = twin.pack(
        new, old, block_elements=block_elements, arena_words=arena_words, **more
    )
    return packed


def check_same(packed: Packed, wanted: reference.Delta, shadow: Bits) -> None:
    got = packed.gathered()
    assert got.entries == wanted.entries
    assert got.payload == wanted.payload
    assert packed.words == len(wanted.payload)
    assert (packed.shadow == shadow).all()


# ---- pack


def check_pack(
    twin: Any, rng: np.random.Generator, count: int, sizes: tuple[int, ...] = BOTH
) -> None:
    for share, step_share in ((0.01, 0.89), (0.3, 0.5), (1.0, 0.0)):
        new, old = two_versions(rng, count, share=share, step_share=step_share)
        for block_elements in sizes:
            shadow = old.copy()
            wanted = reference.pack(new, shadow, block_elements=block_elements)
            packed = packed_whole(twin, new, old, block_elements)
            check_same(packed, wanted, shadow)
            assert packed.digest == reference.digest(shadow)


def check_width(twin: Any, rng: np.random.Generator, width: int) -> None:
    """Elements of any width are packed, applied, undone, listed and digested."""
    for count, share, step_share in ((1, 1.0, 1.0), (3001, 0.3, 0.5), (LARGE + 7, 0.02, 0.8)):
        new, old = two_versions(rng, count, share=share, step_share=step_share, width=width)
        shadow = old.copy()
        wanted = reference.pack(new, shadow, block_elements=LARGE)
        packed = packed_whole(twin, new, old, LARGE)
        check_same(packed, wanted, shadow)
        assert packed.digest == reference.digest(shadow)
        assert twin.digest(new) == packed.digest
        assert (twin.apply(old, wanted).weights == new).all()
        assert (twin.apply(new, wanted, undo=True).weights == old).all()
        unpacked = twin.unpack(old, wanted)
        assert (unpacked.positions, unpacked.values) == reference.topk_unpack(wanted, old)


def check_any_address(twin: Any, rng: np.random.Generator, skew_bytes: int) -> None:
    new, old = two_versions(rng, 20_011, share=0.05)
    shadow = old.copy()
    wanted = reference.pack(new, shadow, block_elements=LARGE)
    packed = packed_whole(twin, new, old, LARGE, skew_bytes=skew_bytes)
    check_same(packed, wanted, shadow)
    applied = twin.apply(old, wanted, skew_bytes=skew_bytes)
    assert (applied.weights == new).all()
    assert twin.digest(new, skew_bytes=skew_bytes) == reference.digest(new)


def check_millions(twin: Any, rng: np.random.Generator, share: float) -> None:
    new, old = two_versions(rng, 5_000_011, share=share)
    shadow = old.copy()
    entries, payload, _, digest = _core.delta_pack(
        new, shadow, block_elements=LARGE, threshold=0, isa=None
    )
    packed = packed_whole(twin, new, old, LARGE)
    assert (packed.entries == entries).all()
    assert packed.gathered().payload == payload.tolist()
    assert (packed.shadow == new).all()
    assert packed.digest == tuple(digest)


def check_index_and_seed(twin: Any, rng: np.random.Generator) -> None:
    new, old = two_versions(rng, 3001, share=0.1)
    seed = int(rng.integers(0, 1 << 63)) * 2 + 1
    packed = packed_whole(twin, new, old, LARGE, first_index=1 << 34, seed=seed)
    assert packed.digest == reference.digest(new, first_index=1 << 34, seed=seed)


def check_deferred(twin: Any, rng: np.random.Generator) -> None:
    new, old = two_versions(rng, 10 * SMALL + 5, share=0.3)
    needed = packed_whole(twin, new, old, SMALL).words
    first = twin.pack(new, old, block_elements=SMALL, arena_words=needed // 2)
    assert first.words == needed
    deferred = first.deferred()
    assert deferred
    assert len(deferred) < len(first.entries)
    for block in range(len(first.entries)):
        part = slice(block * SMALL, (block + 1) * SMALL)
        expected = old if block in deferred else new
        assert (first.shadow[part] == expected[part]).all()
    assert first.digest == reference.digest(first.shadow)
    rest = packed_whole(twin, new, first.shadow, SMALL)
    assert rest.deferred() == []
    halfway = twin.apply(old, first.gathered())
    assert (halfway.weights == first.shadow).all()
    assert (twin.apply(halfway.weights, rest.gathered()).weights == new).all()


def check_no_room(twin: Any, rng: np.random.Generator) -> None:
    new, old = two_versions(rng, 3 * SMALL, share=0.5)
    packed = twin.pack(new, old, block_elements=SMALL, arena_words=1)
    assert packed.deferred() == [0, 1, 2]
    assert (packed.shadow == old).all()
    assert packed.words > 1


# ---- apply


def check_apply(
    twin: Any, rng: np.random.Generator, count: int, sizes: tuple[int, ...] = BOTH
) -> None:
    for share in (0.01, 0.4, 1.0):
        new, old = two_versions(rng, count, share=share)
        for block_elements in sizes:
            delta = reference.pack(new, old.copy(), block_elements=block_elements)
            applied = twin.apply(old, delta)
            assert applied.bad_block == NO_BAD_BLOCK
            assert (applied.weights == new).all()
            undone = twin.apply(new, delta, undo=True)
            assert undone.bad_block == NO_BAD_BLOCK
            assert (undone.weights == old).all()


def entry_with(entry: int, **fields: int) -> int:
    for name, value in fields.items():
        shift, mask = _FIELDS[name]
        entry = entry & ~(mask << shift) | value << shift
    return entry


def check_corrupt(twin: Any, rng: np.random.Generator, fields: dict[str, int]) -> None:
    new, old = two_versions(rng, 4 * SMALL, share=0.02)
    delta = reference.pack(new, old.copy(), block_elements=SMALL)
    sound = list(delta.entries)
    delta.entries[2] = entry_with(sound[2], **fields)
    # The payloads stay where they were: only the words of the entry itself are wrong.
    payload, delta.payload = delta.payload, []
    for entry, bad in zip(sound, delta.entries, strict=True):
        size, said = entry >> 44, bad >> 44
        part, payload = payload[:size], payload[size:]
        delta.payload += (part + [0] * said)[:said]
    applied = twin.apply(old, delta)
    assert applied.bad_block == 2
    for block in range(4):
        part = slice(block * SMALL, (block + 1) * SMALL)
        expected = old if block == 2 else new
        assert (applied.weights[part] == expected[part]).all()


def check_flipped(twin: Any, rng: np.random.Generator) -> None:
    new, old = two_versions(rng, 3 * SMALL, share=0.02)
    delta = reference.pack(new, old.copy(), block_elements=SMALL)
    start, size = delta.entries[0] >> 44, delta.entries[1] >> 44
    for _ in range(24):
        bad = reference.Delta(delta.count, SMALL, list(delta.entries), list(delta.payload))
        bad.payload[start + int(rng.integers(size))] ^= 1 << int(rng.integers(32))
        applied = twin.apply(old, bad)
        assert (applied.weights[:SMALL] == new[:SMALL]).all()
        assert (applied.weights[2 * SMALL :] == new[2 * SMALL :]).all()
        if applied.bad_block != NO_BAD_BLOCK:
            assert applied.bad_block == 1
            assert (applied.weights[SMALL : 2 * SMALL] == old[SMALL : 2 * SMALL]).all()


# ---- top-k


def check_topk(twin: Any, rng: np.random.Generator, count: int) -> None:
    new, old = two_versions(rng, count, share=0.5)
    for budget in (0, 1, count // 20, count):
        threshold = twin.threshold(new, old, budget=budget)
        assert threshold == reference.topk_threshold(new, old, budget)
        shadow = old.copy()
        wanted = reference.pack(new, shadow, block_elements=SMALL, threshold=threshold)
        packed = packed_whole(twin, new, old, SMALL, threshold=threshold)
        check_same(packed, wanted, shadow)
        unpacked = twin.unpack(old, wanted)
        assert unpacked.bad_block == NO_BAD_BLOCK
        positions, values = reference.topk_unpack(wanted, old)
        assert unpacked.positions == positions
        assert unpacked.values == values


def check_threshold_of_millions(twin: Any, rng: np.random.Generator) -> None:
    new, old = two_versions(rng, 4_000_037, share=0.3)
    for budget in (0, 1000, 100_000, 2_000_000):
        wanted = _core.topk_threshold(new, old, budget=budget, isa=None)
        assert twin.threshold(new, old, budget=budget) == wanted


# ---- digest


def check_digest(twin: Any, rng: np.random.Generator, count: int) -> None:
    bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    seed = int(rng.integers(0, 1 << 63))
    assert twin.digest(bits) == reference.digest(bits)
    wanted = reference.digest(bits, first_index=1 << 20, seed=seed)
    assert twin.digest(bits, first_index=1 << 20, seed=seed) == wanted


def check_digest_of_parts(twin: Any, rng: np.random.Generator) -> None:
    bits = rng.integers(0, 1 << 16, 1_000_003, dtype=np.uint16)
    cuts = [0, 4, 40_000, 999_996, len(bits)]
    parts = [
        twin.digest(bits[start:end], first_index=start) for start, end in itertools.pairwise(cuts)
    ]
    whole = tuple(sum(part[which] for part in parts) & MASK64 for which in range(2))
    assert twin.digest(bits) == whole
    assert whole == tuple(_core.digest(bits, first_index=0, seed=0, isa=None))
