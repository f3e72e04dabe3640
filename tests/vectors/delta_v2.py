"""The test vectors of the delta format, version 2, as the reference makes them.

`delta_v2.json` beside this file is what `document()` returns; every twin of the codec is held
against that file. All arrays are the hexadecimal digits of their little-endian bytes. After a
change of the reference, from the root: `python -m tests.vectors.delta_v2`.

    packs     threshold 0: everything that differs is sent
              {name, width, block_elements, threshold, new, shadow, after, entries, payload, digest}
    topk      the same with the budget that gave the threshold, the ages before and after with
              their limit (empty: none), and what the delta unpacks to on the old shadow:
              {..., budget, ages, limit, ages_after, positions, values}
    merges    two deltas and the one that does what both do: {name, width, block_elements, count,
              first, second, merged}, each {entries, payload}
    strats    a delta, what it was made from, the rule, and the delta on the link:
              {name, width, block_elements, old, rule, delta, link}
    digests   {name, width, bits, first_index, seed, digest}
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference import delta as reference
from tests.reference import strat

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


def numbers(width: int) -> str:
    """The dtype of elements of `width` bits."""
    return f"<u{width // 8}"


def changed(
    rng: np.random.Generator, count: int, *, density: float, steps: float, width: int = 16
) -> tuple[Any, Any]:
    """Return new and shadow: `density` of the elements differ, `steps` of those by one."""
    span = 1 << width
    shadow = rng.integers(0, span, count)
    by = np.where(rng.random(count) < 0.5, 1, span - 1)
    near = rng.integers(2, 12, count) * np.where(rng.random(count) < 0.5, 1, -1)
    far = np.where(rng.random(count) < 0.8, near, rng.integers(2, span - 2, count))
    delta = np.where(rng.random(count) < steps, by, far)
    delta[rng.random(count) >= density] = 0
    dtype = numbers(width)
    return ((shadow + delta) % span).astype(dtype), shadow.astype(dtype)


def weights(rng: np.random.Generator, count: int) -> tuple[Any, Any]:
    """Return new and shadow as training has them: bf16 of normal numbers, a few moved a little."""

    def bf16(values: Any) -> Any:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    old = rng.normal(0, 0.02, count)
    return bf16(old + rng.normal(0, 1e-4, count) * (rng.random(count) < 0.2)), bf16(old)


def written(delta: reference.Delta) -> dict[str, str]:
    return {"entries": to_hex(delta.entries, "<u8"), "payload": to_hex(delta.payload, "<u4")}


def pack(
    name: str,
    new: Any,
    shadow: Any,
    *,
    width: int = 16,
    block_elements: int = WIDE,
    threshold: int = 0,
    ages: reference.Ages | None = None,
) -> dict[str, Any]:
    dtype = numbers(width)
    after = np.array(shadow, dtype)
    delta = reference.pack(
        np.array(new, dtype), after, block_elements=block_elements, threshold=threshold, ages=ages
    )
    return {
        "name": name,
        "width": width,
        "block_elements": block_elements,
        "threshold": threshold,
        "new": to_hex(new, dtype),
        "shadow": to_hex(shadow, dtype),
        "after": to_hex(after, dtype),
        "digest": to_hex(reference.digest(after), "<u8"),
        **written(delta),
    }


def topk(
    name: str, new: Any, shadow: Any, *, budget: int, ages: reference.Ages | None = None
) -> dict[str, Any]:
    new, shadow = np.array(new, np.uint16), np.array(shadow, np.uint16)
    before = [] if ages is None else ages.counts.copy()
    threshold = reference.topk_threshold(new, shadow, budget, ages)
    case = pack(name, new, shadow, threshold=threshold, ages=ages)
    delta = reference.Delta(
        len(new), WIDE, from_hex(case["entries"], "<u8").tolist(),
        from_hex(case["payload"], "<u4").tolist(),
    )  # fmt: skip
    positions, values = reference.topk_unpack(delta, shadow)
    return case | {
        "budget": budget,
        "ages": to_hex(before, "u1"),
        "limit": 0 if ages is None else ages.limit,
        "ages_after": to_hex([] if ages is None else ages.counts, "u1"),
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
            f"{count} of {width} bits, {density} change, {steps} by one step",
            *changed(rng, count, density=density, steps=steps, width=width),
            width=width,
        )
        for width in (8, 16, 32)
        for count in (3, 31, 32, 33, 127, 1021)
        for density, steps in ((0.02, 0.9), (0.3, 0.9), (0.5, 0.2), (1.0, 1.0), (1.0, 0.0))
    ]
    new, shadow = changed(rng, DENSE + 1, density=0.01, steps=0.89)
    cases.append(pack("a block and one element", new, shadow, block_elements=DENSE))
    return cases


def largest() -> list[dict[str, Any]]:
    rng = np.random.default_rng(SEED + 1)
    pairs = [(a, b) for a in SPECIAL for b in SPECIAL]
    new, shadow = weights(rng, 1021)

    def ages() -> reference.Ages:
        return reference.Ages(rng.choice([0, 1, 2, 3, 254, 255], 1021).astype(np.uint8), 3)

    return [
        *(topk(f"special, {n}", *zip(*pairs, strict=True), budget=n) for n in (0, 10, 100, 999)),
        *(topk(f"1021 weights, {n}", new, shadow, budget=n) for n in (0, 1, 50, 1021)),
        *(topk(f"due, {n}", new, shadow, budget=n, ages=ages()) for n in (0, 50, 120, 1021)),
        topk("ties go together", [0x3F80] * 8 + [0x4000], [0] * 9, budget=5),
    ]


def merges() -> list[dict[str, Any]]:
    rng = np.random.default_rng(SEED + 3)
    cases = []
    for width in (8, 16, 32):
        for count, density in ((33, 0.2), (1021, 0.05), (1021, 0.9)):
            middle, old = changed(rng, count, density=density, steps=0.7, width=width)
            by = (middle - old).astype(middle.dtype)
            back = rng.random(count) < 0.3
            new, _ = changed(rng, count, density=density, steps=0.7, width=width)
            new = np.where(back, middle - by, np.where(rng.random(count) < density, new, middle))
            first = reference.pack(middle, old, block_elements=WIDE)
            second = reference.pack(new.astype(middle.dtype), middle, block_elements=WIDE)
            cases.append(
                {
                    "name": f"{count} of {width} bits, {density} change twice, some go back",
                    "width": width,
                    "block_elements": WIDE,
                    "count": count,
                    "first": written(first),
                    "second": written(second),
                    "merged": written(reference.merge(first, second)),
                }
            )
    return cases


RULES = {
    8: strat.ClassRule(3, 4, 5, 0b1, (3, 2, 2, 2, 1, 1, 0, 0)),
    16: strat.ClassRule(7, 8, 112, 0b11, (6, 4, 2, 2, 2, 2, 1, 0)),
    32: strat.ClassRule(23, 8, 112, 0b1, (20, 4, 2, 2, 2, 2, 1, 0)),
}


def rule_fields(rule: strat.ClassRule) -> list[int]:
    head = [rule.shift, rule.exponent_bits, rule.origin, rule.all_mask]
    return [*head, *rule.magnitude_bits]


def strats() -> list[dict[str, Any]]:
    rng = np.random.default_rng(SEED + 4)
    cases = []
    for width, density in ((8, 0.02), (16, 0.005), (16, 0.05), (16, 0.6), (32, 0.02), (16, 0.0)):
        count = DENSE + 777 if density < 0.1 and width == 16 else 4999
        old = rng.normal(0, 0.02, count).astype(np.float32).view(np.uint32) >> (32 - width)
        by = rng.geometric(0.8, len(old)) * np.where(rng.random(len(old)) < 0.5, 1, -1)
        by[rng.random(len(old)) < 0.01] = 1 << (width - 2)
        chance = np.full(len(old), density)
        if width == 32:  # small weights change more often, as in training
            chance[(old >> 23 & 0xFF) < 118] *= 30
        by[rng.random(len(old)) >= chance] = 0
        old = old.astype(numbers(width))
        shadow = old.copy()
        delta = reference.pack(
            (old.astype(np.int64) + by).astype(old.dtype), shadow, block_elements=DENSE
        )
        rule = RULES[width]
        cases.append(
            {
                "name": f"{len(old)} of {width} bits, {density} change",
                "width": width,
                "block_elements": DENSE,
                "old": to_hex(old, numbers(width)),
                "rule": rule_fields(rule),
                "delta": written(delta),
                "wire": written(strat.strat_pack(delta, old, rule)),
            }
        )
    return cases


def digests() -> list[dict[str, Any]]:
    rng = np.random.default_rng(SEED + 2)
    return [
        {
            "name": f"{count} of {width} bits from {first} on, seed {seed}",
            "width": width,
            "bits": to_hex(bits, numbers(width)),
            "first_index": first,
            "seed": seed,
            "digest": to_hex(reference.digest(bits, first_index=first, seed=seed), "<u8"),
        }
        for width in (8, 16, 32)
        for count in (0, 1, 3, 4, 5, 31, 32, 33, 67, 257)
        for first, seed in ((0, 0), (8, 7), ((1 << 62) + 8, (1 << 64) - 1))
        for bits in [rng.integers(0, 1 << width, count, dtype=np.uint64).astype(numbers(width))]
    ]


def document() -> dict[str, Any]:
    return {
        "format": "rose delta, version 2",
        "packs": by_hand() + seeded(),
        "topk": largest(),
        "merges": merges(),
        "strats": strats(),
        "digests": digests(),
    }


def text() -> str:
    """Return the document as JSON, with a line for each case."""
    lists = [
        f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, cases)) + "\n]"
        for name, cases in document().items()
        if name != "format"
    ]
    head = f'"format": {json.dumps(document()["format"])}'
    return "{\n" + ",\n".join([head, *lists]) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
