"""Reading a certificate log, with checks for damage.

Layout: `docs/protocol.md`; meaning of certificates: `docs/certificates.md`.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rose.errors import CorruptData, InvalidArgument
from rose.slo.log_layout import (
    CRC_AT,
    HEADER,
    KINDS,
    PAYLOAD_AT,
    PREFIX,
    RECORD,
    RECORD_BYTES,
    VERSION,
)
from rose.whole_file import open_input

_MAGIC: Final = b"ROSELOG1"
_NOTHING: Final = bytes(RECORD_BYTES)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record.

    Args:
        kind: name of the record's kind, such as START, from the table in `docs/protocol.md`.
        time_ns: time on CLOCK_BOOTTIME.
        fields: values of the payload by field name.
    """

    kind: str
    time_ns: int
    fields: dict[str, Any]


def read_log(path: Path) -> tuple[dict[str, Any], list[LogRecord]]:
    """Return the header's fields and all records.

    Raises:
        InvalidArgument: see `stream_log`.
        CorruptData: see `stream_log`.
    """
    header, records = stream_log(path)
    return header, list(records)


def stream_log(path: Path) -> tuple[dict[str, Any], Iterator[LogRecord]]:
    """Return the header's fields and an iterator over the records, as a log may exceed memory.

    Raises:
        InvalidArgument: the file does not exist, or is not a log of this version.
        CorruptData: the file is damaged; the message names the record. If a record is damaged, the
            iterator raises this.
    """
    try:
        with open_input(path) as file:
            content = file.read(RECORD_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error
    header = _header(path, content)
    return header, _records(path, content)


def _header(path: Path, content: bytes) -> dict[str, Any]:
    """Check a header, and return its fields."""
    if not content.startswith(_MAGIC):
        raise InvalidArgument(f"{path} is not a certificate log of rose")
    if len(content) < RECORD_BYTES:
        raise CorruptData(f"{path}: the header is cut off at byte {len(content)}")
    if zlib.crc32(content[:CRC_AT]) != int.from_bytes(content[CRC_AT:], "little"):
        raise CorruptData(f"{path}: the header has a wrong checksum, at byte {CRC_AT}")
    prefix = PREFIX.read(content, 0)
    version, record_bytes = prefix["version"], prefix["record_bytes"]
    if (version, record_bytes) != (VERSION, RECORD_BYTES):
        raise InvalidArgument(
            f"{path} has version {version} with records of {record_bytes} bytes; "
            f"this rose reads version {VERSION} with {RECORD_BYTES}"
        )
    return prefix | HEADER.read(content, PREFIX.form.size)


def _rows(path: Path) -> Iterator[bytes]:
    """Yield the bytes of each record; only the last one may be too short."""
    try:
        with open_input(path) as file:
            file.seek(RECORD_BYTES)
            while row := file.read(RECORD_BYTES):
                yield row
    except OSError as error:
        raise _unreadable(path, error) from error


def _records(path: Path, header: bytes) -> Iterator[LogRecord]:
    """Yield every record, after checks for damage."""
    chain = int.from_bytes(header[CRC_AT:], "little")
    time_ns = 0
    for number, row in enumerate(_rows(path), start=1):
        start = number * RECORD_BYTES
        if len(row) < RECORD_BYTES:
            raise _damage(path, start, f"is cut off after {len(row)} bytes")
        chain = zlib.crc32(row[:CRC_AT], chain)
        if chain != int.from_bytes(row[CRC_AT:], "little"):
            raise _damage(path, start, f"has a wrong checksum, at byte {start + CRC_AT}")
        kind, zero, sequence, stamp = RECORD.form.unpack_from(row)
        if not 1 <= kind <= len(KINDS):
            raise _damage(path, start, f"has the unknown kind {kind}")
        if sequence != number:
            raise _damage(path, start, f"has the sequence number {sequence}, not {number}")
        if stamp < time_ns:
            raise _damage(path, start, "is earlier than the record before it")
        time_ns = stamp
        name, layout = KINDS[kind - 1]
        used = PAYLOAD_AT + layout.form.size
        if zero or row[used:CRC_AT] != _NOTHING[used:CRC_AT]:
            raise _damage(path, start, "has bytes other than 0 outside its fields")
        yield LogRecord(name, stamp, layout.read(row, PAYLOAD_AT))


def _unreadable(path: Path, error: OSError) -> InvalidArgument:
    return InvalidArgument(f"cannot read the log {path}: {error.strerror}")


def _damage(path: Path, start: int, what: str) -> CorruptData:
    """Return the exception for the record at byte `start`."""
    return CorruptData(f"{path}: record {start // RECORD_BYTES} at byte {start} {what}")
