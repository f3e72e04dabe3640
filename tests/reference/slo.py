"""The slow truth of admission, and a forger of logs."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

RECORD = 128
CRC_AT = 124


@dataclass
class ServingMemory:
    """Serving's blocks, handed out one at a time: own ones first, then slabs, then revoked ones."""

    blocks_per_slab: int
    free: int
    unowned_slabs: int
    revocable: int

    def take(self) -> bool:
        """Take one block; False when there is none anywhere."""
        if self.free == 0 and self.unowned_slabs > 0:
            self.unowned_slabs -= 1
            self.free += self.blocks_per_slab
        if self.free == 0 and self.revocable > 0:
            self.revocable -= 1
            self.free += 1
        if self.free == 0:
            return False
        self.free -= 1
        return True


def store(memory: ServingMemory, *, stored: int, new: int, block_tokens: int) -> bool:
    """Append `new` tokens to a request that holds `stored`; False when a block is missing."""
    for token in range(stored, stored + new):
        if token % block_tokens == 0 and not memory.take():
            return False
    return True


def events_within(horizon_ms: int, per_s: int) -> int:
    """Count events at 0, 1 / per_s, 2 / per_s, ... that are not later than the horizon."""
    count = 1
    while per_s and count * 1000 <= horizon_ms * per_s:
        count += 1
    return count


def prompts_within(
    horizon_ms: int,
    *,
    prefill_tokens_per_s: int,
    max_request_tokens: int,
    max_batch_tokens: int,
    burst_requests: int,
    burst_request_tokens: int,
) -> tuple[int, int]:
    """Return how many requests can arrive within the horizon, and the prompt tokens of all."""
    further = burst_requests
    prefilled = events_within(horizon_ms, prefill_tokens_per_s) - 1
    asked = max_request_tokens + further * burst_request_tokens
    return 1 + further, min(asked, max_batch_tokens + prefilled)


def worst_horizon_fits(
    memory: ServingMemory,
    *,
    block_tokens: int,
    horizon_ms: int,
    stored: Sequence[int],
    decode_tokens_per_s: int,
    prompts: Sequence[int],
) -> bool:
    """Let everything happen within the horizon, and say whether memory sufficed.

    Args:
        memory: serving's, right after the grant.
        stored: tokens that each running request holds already.
        prompts: of the requests that arrive; each is prefilled at once and then decodes as well.
    """
    decoded = events_within(horizon_ms, decode_tokens_per_s)
    requests = [(one, decoded) for one in stored] + [(0, one + decoded) for one in prompts]
    return all(
        store(memory, stored=held, new=new, block_tokens=block_tokens) for held, new in requests
    )


END_KIND, KINDS, COUNTS_AT = 10, 12, 24


def recounted(records: Sequence[bytes]) -> list[bytes]:
    """Make the counts of the last record, END, right again after a forgery."""
    kinds = [int.from_bytes(one[:4], "little") for one in records[1:]]
    assert kinds[-1] == END_KIND
    counts = b"".join(kinds.count(kind).to_bytes(4, "little") for kind in range(1, KINDS + 1))
    return [*records[:-1], records[-1][:COUNTS_AT] + counts + records[-1][COUNTS_AT + 4 * KINDS :]]


def reseal(records: Sequence[bytes]) -> bytes:
    """Join header and records after a forgery: numbers and checksums are made right again."""
    out, crc = b"", 0
    for number, record in enumerate(records):
        body = record[:CRC_AT]
        if number > 0:
            body = body[:8] + number.to_bytes(8, "little") + body[16:]
        crc = zlib.crc32(body, crc)
        out += body + crc.to_bytes(4, "little")
    return out
