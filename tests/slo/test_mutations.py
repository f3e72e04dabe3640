"""Every field of every record is altered, one at a time, and the checksums are made right again.

What the verifier accepts must be named in `docs/certificates.md`, and what is named there must be
accepted at least once: the page claims neither too much nor too little.
"""

import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rose.errors import CorruptData, InvalidArgument
from rose.slo.log_layout import HEADER, KINDS, PAYLOAD_AT, PREFIX, RECORD, RecordLayout
from rose.slo.verify import verify_log
from tests.reference.log_bytes import MS, LogBytes
from tests.reference.slo import RECORD as RECORD_BYTES
from tests.reference.slo import reseal
from tests.slo.conftest import write_log

PAGE = Path(__file__).parents[2] / "docs" / "certificates.md"
SECTION = re.compile(r"## What a log cannot prove\n(.*?)\n## ", re.DOTALL)
ROW = re.compile(r"\| ([A-Za-z_]+) \| ([a-z0-9_, ]+) \|")
RESEALED = {("record", "sequence")}  # the forger numbers the records again
SPECIAL = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e300, 5e-324)


@dataclass(frozen=True)
class Field:
    """One field of one record of a log."""

    number: int  # of the record; 0 is the header
    kind: str
    name: str
    code: str  # of `struct`
    offset: int

    @property
    def key(self) -> tuple[str, str]:
        return (self.kind, self.name)


def split(content: bytes) -> list[bytes]:
    return [content[at : at + RECORD_BYTES] for at in range(0, len(content), RECORD_BYTES)]


def kind_of(record: bytes) -> str:
    return KINDS[int.from_bytes(record[:4], "little") - 1][0]


def laid_out(number: int, kind: str, layout: RecordLayout, offset: int) -> Iterator[Field]:
    codes = re.findall(r"\d+s|[a-zA-Z]", layout.form.format)
    for name, code in zip(layout.names, codes, strict=True):
        yield Field(number, kind, name, code, offset)
        offset += struct.calcsize("<" + code)


def fields_of(records: list[bytes]) -> list[Field]:
    found = [*laid_out(0, "header", PREFIX, 0), *laid_out(0, "header", HEADER, PREFIX.form.size)]
    for number, record in enumerate(records[1:], start=1):
        found += laid_out(number, "record", RECORD, 0)
        kind = kind_of(record)
        found += laid_out(number, kind, dict(KINDS)[kind], PAYLOAD_AT)
    return [one for one in found if one.key not in RESEALED]


def altered(value: float | bytes, code: str, draw: random.Random) -> list[float | bytes]:
    """Return other values of a field: its neighbours, its extremes, and some that are drawn."""
    if isinstance(value, bytes):
        bits = int.from_bytes(value, "little")
        width = 8 * len(value)
        others = [
            0,
            (1 << width) - 1,
            (bits << 1) % (1 << width),
            *(bits ^ 1 << draw.randrange(width) for _ in range(4)),
        ]
        return [one.to_bytes(len(value), "little") for one in others if one != bits]
    if code == "d":
        near = (value / 2, value * 2, value - 1, value + 1, value * draw.uniform(0.9, 1.1))
        return [one for one in (*SPECIAL, *near) if one != value]
    width = 8 * struct.calcsize("<" + code)
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if code in "iq" else (0, (1 << width) - 1)
    whole = int(value)
    near = (whole - 1, whole + 1, whole // 2, whole * 2, whole ^ 1 << draw.randrange(width - 1))
    ends = (0, 1, low, high, draw.randint(low, high))
    return sorted({one for one in (*ends, *near) if low <= one <= high and one != whole})


def put(records: list[bytes], field: Field, value: float | bytes) -> list[bytes]:
    old = records[field.number]
    new = struct.pack("<" + field.code, value)
    forged = old[: field.offset] + new + old[field.offset + len(new) :]
    return [*records[: field.number], forged, *records[field.number + 1 :]]


def is_accepted(path: Path, records: list[bytes]) -> bool:
    path.write_bytes(reseal(records))
    try:
        answer = verify_log(path)
    except (CorruptData, InvalidArgument):
        return False
    return not answer.violations and not answer.without


def busy_log(path: Path) -> Path:
    """Write a log of both modes in which requests overlap and all of them end."""
    log = LogBytes(slowdown=10.0)
    log.quantum(0)
    log.arrived(0)
    log.arrived(1, tokens=32)
    log.wait(5)
    log.tokens(0, 1)
    log.wait(3)
    log.step(3, upper_ms=12.0)
    terms = {"deadline_ns": log.now_ns + 47 * MS, "pending": 2}
    log.quantum(1, passed=4, outstanding=1, budget_ms=30.0, **terms)
    log.step(8, lent_ms=20, blocked_ms=1, upper_ms=12.0)
    log.tokens(0)
    log.quantum(1, passed=6, segments=2, budget_ms=89.0, **terms)
    log.forced(passed=7)
    log.finished(1)
    log.arrived(1, prefilled=1)
    log.wait(3)
    log.step(3, upper_ms=12.0)
    terms["deadline_ns"] = log.now_ns + 47 * MS
    log.quantum(1, passed=9, committed=1, budget_ms=30.0, **terms)
    log.finished(0)
    log.wait(2)
    log.tokens(1)
    log.finished(1)
    log.quantum(0, passed=11, close_epoch=2)
    log.waited(8 * MS, certified_ns=6 * MS)
    log.quantum(0, passed=15, close_epoch=3)
    log.waited(5 * MS, certified_ns=6 * MS)
    log.waited(5 * MS)
    log.quantum(2, passed=19, segments=1, close_epoch=4, segment_upper_ms=900.0)
    log.evicted(7 * MS)
    return log.save(path)


def unfinished_log(path: Path) -> Path:
    """Write a log that ends while requests are live: nothing later names their slots."""
    log = LogBytes()
    for slot in range(4):
        log.arrived(slot)
    log.wait(5)
    log.tokens(0, 1)
    log.finished(2)
    return log.save(path)


@pytest.fixture
def logs(tmp_path: Path) -> list[list[bytes]]:
    write_log(tmp_path / "core")
    paths = [tmp_path / "core", busy_log(tmp_path / "busy"), unfinished_log(tmp_path / "open")]
    assert all(verify_log(path).violations == [] for path in paths)
    return [split(path.read_bytes()) for path in paths]


def named() -> set[tuple[str, str]]:
    """Return the fields that the page names as beyond proof."""
    section = SECTION.search(PAGE.read_text(encoding="utf-8"))
    assert section is not None
    rows = ROW.findall(section[1])[1:]  # behind the head of the table
    return {(kind, name.strip()) for kind, names in rows for name in names.split(",")}


def survivors(
    logs: list[list[bytes]],
    path: Path,
    draw: random.Random,
    tried: Callable[..., None],
    *,
    share: float,
) -> set[tuple[str, str]]:
    """Alter a share of all fields to each of their other values; return those that passed."""
    found: set[tuple[str, str]] = set()
    for records in logs:
        for field in fields_of(records):
            if draw.random() >= share:
                continue
            value = struct.unpack_from("<" + field.code, records[field.number], field.offset)[0]
            for other in altered(value, field.code, draw):
                tried("certificate mutations")
                if is_accepted(path, put(records, field, other)):
                    found.add(field.key)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_some_altered_fields_are_found_or_named(logs, tmp_path, seed, tried):
    found = survivors(logs, tmp_path / "forged", random.Random(seed), tried, share=0.15)
    assert found - named() == set()


def test_no_number_that_is_none_is_accepted_but_a_bound_that_there_was_not(logs, tmp_path):
    found = set()
    for records in logs:
        for field in fields_of(records):
            for value in SPECIAL[1:5] if field.code == "d" else ():
                if is_accepted(tmp_path / "forged", put(records, field, value)):
                    found.add((*field.key, value))
    assert found == {("STEP", "upper_ms", float("inf")), ("header", "slowdown", float("inf"))}


@pytest.mark.slow
def test_every_altered_field_is_found_or_named_and_no_other_is_named(logs, tmp_path, tried):
    found = set()
    for seed in range(8):
        found |= survivors(logs, tmp_path / "forged", random.Random(seed), tried, share=1.0)
    assert found == named()


def test_a_record_that_is_left_out_is_found_whatever_it_is(logs, tmp_path):
    for records in logs:
        for number in range(1, len(records)):
            left = [*records[:number], *records[number + 1 :]]
            assert not is_accepted(tmp_path / "forged", left), kind_of(records[number])


def test_a_record_that_comes_twice_is_found_whatever_it_is(logs, tmp_path):
    for records in logs:
        for number in range(1, len(records)):
            twice = [*records[: number + 1], *records[number:]]
            assert not is_accepted(tmp_path / "forged", twice), kind_of(records[number])
