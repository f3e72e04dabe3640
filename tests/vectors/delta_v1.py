"""The test vectors of the delta format, version 1, as the reference makes them.

`delta_v1.json` beside this file is what `document()` returns; every twin of the codec is held
against that file. All arrays are the hexadecimal digits of their little-endian bytes. After a
change of the reference, from the root: `python -m tests.vectors.delta_v1`.

    packs     threshold 0: everything that differs is sent
              {name, block_elements, threshold, new, shadow, after, entries, payload, digest}
    topk      the same with the budget that gave the threshold, and what the delta unpacks to
              on the old shadow: {..., budget, positions, values}
    digests   {name, bits, first_index, seed, digest}
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference import delta as reference

PATH = Path(__file__).with_suffix(".json")
DENSE, WIDE = 16_384, 65_536
SEED = 20_260_101

# Zeros, least and largest subnormals and normals, one and its neighbours, infinities, quiet and
# signalling NaNs, and both ends of the unsigned range.
SPECIAL = [0x0000, 0x8000, 0x0001, 0x007F, 0x0080, 0x3F7F, 0x3F80, 0x3F81, 0x7F7F, 0x7F80]
SPECIAL += [0x7F81, 0x7FC0, 0x7FFF, 0xFF80, 0xFFC1, 0xFFFF]


def to_hex(numbers: Any, dtype: str) -> str:
    return np.asarray(numbers, dtype).tobytes().hex()


def from_hex(digits: str, dtype: str) -> Any:
    return np.frombuffer(bytes.fromhex(digits), dtype).copy()


def changed(
    rng: np.random.Generator, count: int, *, density: float, steps: float
) -> tuple[Any, Any]:
    """Return new and shadow: `density` of the elements differ, `steps` of those by one."""
    shadow = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    by = np.where(rng.random(count) < 0.5, 1, 0xFFFF).astype(np.uint16)
    far = rng.integers(2, 0xFFFE, count, dtype=np.uint16)
    delta = np.where(rng.random(count) < steps, by, far)
    delta[rng.random(count) >= density] = 0
    return (shadow + delta).astype(np.uint16), shadow


def weights(rng: np.random.Generator, count: int) -> tuple[Any, Any]:
    """Return new and shadow as training has them: bf16 of normal numbers, a few moved a little."""

    def bf16(values: Any) -> Any:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    old = rng.normal(0, 0.02, count)
    return bf16(old + rng.normal(0, 1e-4, count) * (rng.random(count) < 0.2)), bf16(old)


def pack(
    name: str, new: Any, shadow: Any, *, block_elements: int = WIDE, threshold: int = 0
) -> dict[str, Any]:
    after = np.array(shadow, np.uint16)
    delta = reference.pack(
        np.array(new, np.uint16), after, block_elements=block_elements, threshold=threshold
    )
    return {
        "name": name,
        "block_elements": block_elements,
        "threshold": threshold,
        "new": to_hex(new, "<u2"),
        "shadow": to_hex(shadow, "<u2"),
        "after": to_hex(after, "<u2"),
        "entries": to_hex(delta.entries, "<u8"),
        "payload": to_hex(delta.payload, "<u4"),
        "digest": to_hex(reference.digest(after), "<u8"),
    }


def topk(name: str, new: Any, shadow: Any, *, budget: int) -> dict[str, Any]:
    new, shadow = np.array(new, np.uint16), np.array(shadow, np.uint16)
    threshold = reference.topk_threshold(new, shadow, budget)
    case = pack(name, new, shadow, threshold=threshold)
    delta = reference.Delta(
        len(new), WIDE, from_hex(case["entries"], "<u8").tolist(),
        from_hex(case["payload"], "<u4").tolist(),
    )  # fmt: skip
    positions, values = reference.topk_unpack(delta, shadow)
    return case | {
        "budget": budget,
        "positions": to_hex(positions, "<i8"),
        "values": to_hex(values, "<u2"),
    }


def by_hand() -> list[dict[str, Any]]:
    """Return cases small enough to check with a pencil."""
    ten = [0x3F80] * 10
    one_step = [*ten[:3], 0x3F81, *ten[4:]]
    pairs = [(a, b) for a in SPECIAL for b in SPECIAL]
    return [
        pack("nothing at all", [], []),
        pack("one element, unchanged", [0x3F80], [0x3F80]),
        pack("one element, one step: RAW", [0x3F81], [0x3F80]),
        pack("ten elements, one step up", one_step, ten),
        pack("ten elements, one step down", ten, one_step),
        pack("a step down wraps", [0xFFFF, *ten], [0x0000, *ten]),
        pack("a step up wraps", [0x0000, *ten], [0xFFFF, *ten]),
        pack("the sign of a zero is an exception", [0x8000, *ten, *ten], [0x0000, *ten, *ten]),
        pack("every special pattern becomes every other", *zip(*pairs, strict=True)),
        pack("the last of 33 changes", [0] * 32 + [1], [0] * 33),
    ]


def seeded() -> list[dict[str, Any]]:
    rng = np.random.default_rng(SEED)
    cases = [
        pack(
            f"{count} elements, {density} change, {steps} by one step",
            *changed(rng, count, density=density, steps=steps),
        )
        for count in (3, 31, 32, 33, 127, 1021)
        for density, steps in ((0.02, 0.9), (0.5, 0.9), (1.0, 1.0), (1.0, 0.0))
    ]
    for density, steps in ((0.01, 0.89), (0.6, 0.3)):
        name = f"a block and one element, {density} change, {steps} by one step"
        new, shadow = changed(rng, DENSE + 1, density=density, steps=steps)
        cases.append(pack(name, new, shadow, block_elements=DENSE))
    return cases


def largest() -> list[dict[str, Any]]:
    rng = np.random.default_rng(SEED + 1)
    pairs = [(a, b) for a in SPECIAL for b in SPECIAL]
    new, shadow = weights(rng, 1021)
    return [
        *(topk(f"special, {n}", *zip(*pairs, strict=True), budget=n) for n in (0, 10, 100, 999)),
        *(topk(f"1021 weights, {n}", new, shadow, budget=n) for n in (0, 1, 50, 1021)),
        topk("ties go together", [0x3F80] * 8 + [0x4000], [0] * 9, budget=5),
    ]


def digests() -> list[dict[str, Any]]:
    rng = np.random.default_rng(SEED + 2)
    return [
        {
            "name": f"{count} elements from {first} on, seed {seed}",
            "bits": to_hex(bits, "<u2"),
            "first_index": first,
            "seed": seed,
            "digest": to_hex(reference.digest(bits, first_index=first, seed=seed), "<u8"),
        }
        for count in (0, 1, 3, 4, 5, 31, 32, 33, 67, 257)
        for first, seed in ((0, 0), (4, 7), ((1 << 62) + 4, (1 << 64) - 1))
        for bits in [rng.integers(0, 1 << 16, count, dtype=np.uint16)]
    ]


def document() -> dict[str, Any]:
    return {
        "format": "rose delta, version 1",
        "packs": by_hand() + seeded(),
        "topk": largest(),
        "digests": digests(),
    }


def text() -> str:
    return json.dumps(document(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
