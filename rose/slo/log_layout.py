"""The layout of a certificate log, from the tables of `docs/protocol.md`.

On purpose nothing here is shared with the C++ code that writes logs, which has its own tables.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

VERSION: Final = 7
RECORD_BYTES: Final = 128
PAYLOAD_AT: Final = 24
CRC_AT: Final = 124


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Consecutive fields without gaps.

    Args:
        names: names in the order of the bytes.
        form: struct format of the bytes.
    """

    names: tuple[str, ...]
    form: struct.Struct

    def read(self, content: bytes, offset: int) -> dict[str, Any]:
        """Return the fields at `offset`."""
        return dict(zip(self.names, self.form.unpack_from(content, offset), strict=True))


def _layout(*runs: str) -> RecordLayout:
    """Make a layout. Each of `runs` is a type code of `struct`, then the fields of that type."""
    codes: list[str] = []
    names: list[str] = []
    for run in runs:
        code, *fields = run.split()
        codes += [code] * len(fields)
        names += fields
    return RecordLayout(tuple(names), struct.Struct("<" + "".join(codes)))


PREFIX: Final = _layout("8s magic", "I version record_bytes")

# Fields after the prefix.
HEADER: Final = _layout(
    "d ttft_ms tpot_ms epsilon signal_ms blocking_ms",
    "q heartbeat_ttl_ns started_ns",
    "I max_segments slabs partitions blocks_per_slab",
    "I block_tokens max_request_tokens max_batch_tokens burst_requests",
    "d revoke_ms slowdown",
    "I without",
)

RECORD: Final = _layout("I kind zero", "Q sequence", "q time_ns")

# The payloads, as (name, layout): kind k is at index k - 1.
KINDS: Final = (
    ("START", _layout("q wall_time_ns wait_budget_ns", "d park_wait_ms")),
    ("ARRIVED", _layout("Q tokens", "I slot prefilled")),
    ("FINISHED", _layout("I slot")),
    (
        "QUANTUM",
        _layout(
            "d segment_upper_ms quantum_ms step_upper_ms chunk_upper_ms budget_ms wait_ms",
            "q deadline_ns heartbeat_age_ns",
            "I segments outstanding passed close_epoch pending mode committed",
        ),
    ),
    (
        "ADMISSION",
        _layout(
            "Q epoch",
            "d horizon_ms decode_tokens_per_s prefill_tokens_per_s",
            "q slack_blocks",
            "I slabs block_tokens free_serving_blocks unowned_slabs revocable_blocks",
            "I running_requests max_request_tokens max_batch_tokens burst_requests",
            "I burst_request_tokens demand_blocks to_partition",
        ),
    ),
    ("MOVE", _layout("Q lease_id epoch", "i from to", "I slabs move_kind")),
    ("REVOKE_BEGUN", _layout("q deadline_ns", "I slabs")),
    (
        "STEP",
        _layout(
            "d predicted_ms upper_ms actual_ms decode_sequences context_tokens prefill_tokens",
            "d blocked_ms lent_ms",
            "q began_ns",
        ),
    ),
    ("GAVE_BACK", _layout("96s reason")),
    (
        "END",
        _layout(
            "I START ARRIVED FINISHED QUANTUM ADMISSION MOVE REVOKE_BEGUN",
            "I STEP GAVE_BACK END TOKENS FORCED WAITED EVICTED",
        ),
    ),
    ("TOKENS", _layout("I first_slot count", "88s bitmap")),
    ("FORCED", _layout("I passed close_epoch")),
    ("WAITED", _layout("q waited_ns certified_ns left_ns", "I borrower")),
    ("EVICTED", _layout("q spent_ns", "I borrower pid", "80s reason")),
)
