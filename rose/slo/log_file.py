"""Reading a certificate log: the byte layout, restated, and the checks that find damage.

Written a second time on purpose: nothing here is shared with the C++ code that writes logs. The
layout as tables: `docs/protocol.md`; what certificates mean: `docs/certificates.md`.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rose.errors import CorruptData, InvalidArgument

_MAGIC: Final = b"ROSELOG1"
_VERSION: Final = 2
_SIZE: Final = 128
_PAYLOAD_AT: Final = 24
_PAYLOAD_SIZE: Final = 96
_CRC_AT: Final = 124

_HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("record_bytes", "<u4"),
        ("ttft_ms", "<f8"),
        ("tpot_ms", "<f8"),
        ("epsilon", "<f8"),
        ("signal_ms", "<f8"),
        ("blocking_ms", "<f8"),
        ("heartbeat_ttl_ns", "<i8"),
        ("started_ns", "<i8"),
        ("max_segments", "<u4"),
        ("slabs", "<u4"),
        ("partitions", "<u4"),
        ("blocks_per_slab", "<u4"),
        ("block_tokens", "<u4"),
        ("max_request_tokens", "<u4"),
        ("max_batch_tokens", "<u4"),
        ("burst_requests", "<u4"),
        ("revoke_ms", "<f8"),
    ]
)
_NAMES: Final = (
    "START",
    "ARRIVED",
    "FINISHED",
    "QUANTUM",
    "ADMISSION",
    "MOVE",
    "REVOKE_BEGUN",
    "STEP",
    "GAVE_BACK",
    "END",
)
_FIELDS: Final[dict[str, list[tuple[str, str]]]] = {
    "START": [("wall_time_ns", "<i8")],
    "ARRIVED": [("tokens", "<u8")],
    "FINISHED": [],
    "QUANTUM": [
        ("segment_upper_ms", "<f8"),
        ("quantum_ms", "<f8"),
        ("signal_ms", "<f8"),
        ("step_upper_ms", "<f8"),
        ("chunk_upper_ms", "<f8"),
        ("ttft_ms", "<f8"),
        ("blocking_ms", "<f8"),
        ("heartbeat_age_ns", "<i8"),
        ("segments", "<u4"),
        ("outstanding", "<u4"),
        ("passed", "<u4"),
        ("close_epoch", "<u4"),
        ("pending", "<u4"),
    ],
    "ADMISSION": [
        ("epoch", "<u8"),
        ("horizon_ms", "<f8"),
        ("decode_tokens_per_s", "<f8"),
        ("prefill_tokens_per_s", "<f8"),
        ("slack_blocks", "<i8"),
        ("slabs", "<u4"),
        ("block_tokens", "<u4"),
        ("free_serving_blocks", "<u4"),
        ("unowned_slabs", "<u4"),
        ("revocable_blocks", "<u4"),
        ("running_requests", "<u4"),
        ("max_request_tokens", "<u4"),
        ("max_batch_tokens", "<u4"),
        ("burst_requests", "<u4"),
        ("burst_request_tokens", "<u4"),
        ("demand_blocks", "<u4"),
        ("to_partition", "<u4"),
    ],
    "MOVE": [
        ("lease_id", "<u8"),
        ("epoch", "<u8"),
        ("from", "<i4"),
        ("to", "<i4"),
        ("slabs", "<u4"),
        ("move_kind", "<u4"),
    ],
    "REVOKE_BEGUN": [("lease_id", "<u8"), ("deadline_ns", "<i8"), ("slabs", "<u4")],
    "STEP": [
        ("predicted_ms", "<f8"),
        ("upper_ms", "<f8"),
        ("actual_ms", "<f8"),
        ("decode_sequences", "<f8"),
        ("context_tokens", "<f8"),
        ("prefill_tokens", "<f8"),
    ],
    "GAVE_BACK": [("reason", "S96")],
    "END": [("records", "<u8")],
}
_PAYLOADS: Final = {name: np.dtype(fields) for name, fields in _FIELDS.items()}


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record.

    Args:
        kind: START, ARRIVED, ... as in the table of the protocol.
        time_ns: CLOCK_BOOTTIME.
        fields: the payload, by name.
    """

    kind: str
    time_ns: int
    fields: dict[str, Any]


def read_log(path: Path) -> tuple[dict[str, Any], list[LogRecord]]:
    """Return the header's fields and all records.

    Raises:
        InvalidArgument: there is no such file, or it is not a log.
        CorruptData: the bytes are not those that were written; the sentence names the record.
    """
    content, header = _read(path)
    return header, _records(path, content)


def _fields(dtype: np.dtype[Any], content: bytes, offset: int) -> dict[str, Any]:
    """Return the named fields at `offset` as plain Python numbers."""
    if not dtype.names:
        return {}
    row = np.frombuffer(content, dtype, count=1, offset=offset)[0]
    return dict(zip(row.dtype.names, row.item(), strict=True))


def _read(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the file and its header, once that is known to be one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read the log {path}: {error.strerror}") from error
    if content[: len(_MAGIC)] != _MAGIC:
        raise InvalidArgument(f"{path} is not a certificate log of rose")
    if len(content) < _SIZE:
        raise CorruptData(f"{path}: the header is cut off at byte {len(content)}")
    if zlib.crc32(content[:_CRC_AT]) != int.from_bytes(content[_CRC_AT:_SIZE], "little"):
        raise CorruptData(f"{path}: the checksum of the header, at byte {_CRC_AT}, differs")
    header = _fields(_HEADER, content, 0)
    if header["version"] != _VERSION or header["record_bytes"] != _SIZE:
        raise InvalidArgument(
            f"{path} has version {header['version']} with records of {header['record_bytes']} "
            f"bytes; this rose reads version {_VERSION} with {_SIZE}"
        )
    return content, header


def _records(path: Path, content: bytes) -> list[LogRecord]:
    """Return every record, after the checks that find damage."""
    out = []
    chain = int.from_bytes(content[_CRC_AT:_SIZE], "little")
    time_ns = 0
    for start in range(_SIZE, len(content), _SIZE):
        number = start // _SIZE
        where = f"{path}: record {number} at byte {start}"
        if start + _SIZE > len(content):
            raise CorruptData(f"{where} is cut off after {len(content) - start} bytes")
        row = content[start : start + _SIZE]
        chain = zlib.crc32(row[:_CRC_AT], chain)
        if chain != int.from_bytes(row[_CRC_AT:], "little"):
            raise CorruptData(f"{where}: its checksum, at byte {start + _CRC_AT}, differs")
        kind = int.from_bytes(row[0:4], "little")
        sequence = int.from_bytes(row[8:16], "little")
        stamp = int.from_bytes(row[16:24], "little", signed=True)
        if not 1 <= kind <= len(_NAMES):
            raise CorruptData(f"{where} has the unknown kind {kind}")
        if sequence != number:
            raise CorruptData(f"{where} has the sequence number {sequence}")
        if stamp < time_ns:
            raise CorruptData(f"{where} is earlier than the record before it")
        time_ns = stamp
        name = _NAMES[kind - 1]
        used = _PAYLOAD_AT + _PAYLOADS[name].itemsize
        if any(row[4:8]) or any(row[used:_CRC_AT]):
            raise CorruptData(f"{where} has bytes other than 0 where nothing is stored")
        fields = _fields(_PAYLOADS[name], content, start + _PAYLOAD_AT)
        out.append(LogRecord(name, stamp, fields))
    return out
