"""What a device and a tenant of another process say to each other before and between loans.

Everything that has to be quick is shared memory instead: see the ledger and the mailbox in
`docs/protocol.md`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from rose.errors import CorruptData
from rose.memory import KVGeometry

FORMAT: Final = 2
# Longer than any message: a grant names its slabs, seven bytes each.
MESSAGE_BYTES_MAX: Final = 1 << 20
# The kernel passes at most 253 descriptors at once; 140 GiB in pieces of 1 GiB are 140.
DESCRIPTORS_MAX: Final = 253

# The range of every field, checked when a message is decoded: behind `decode` nothing is out of it.
_INT32_MAX: Final = (1 << 31) - 1
Count = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
Bytes = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Milliseconds = Annotated[float, Meta(ge=0)]  # infinite included, NaN not
Word = Annotated[str, Meta(max_length=64)]
Sentence = Annotated[str, Meta(max_length=1 << 16)]


@dataclass(frozen=True, slots=True)
class Hello:
    """A tenant asks to borrow.

    Args:
        geometry: of its KV.
        limit_bytes: the most it may borrow.
        format: of these messages; a device answers its own only.
    """

    geometry: KVGeometry
    limit_bytes: Bytes
    format: Count = FORMAT


@dataclass(frozen=True, slots=True)
class Welcome:
    """It may. The descriptors come with it, in the order of `descriptors`.

    Args:
        device: "cpu" or "cuda:<n>".
        partition: the tenant's.
        header_index: the header slab that is its own.
        slab_bytes: of each slab.
        slab_count: lendable slabs of the pool.
        header_slabs: slabs in front of them.
        isolation: "shared": the pool's memory objects come with this; "mapped": its own header slab
            does, and each slab when it is lent.
        object_bytes: of each memory object that came, in order.
        slabs_max: the most it could ever hold.
        gate_window: segments that may wait in the stream of a GPU.
        has_gates: False makes each of its steps one segment.
        lease_ttl_ms: a loan that is not renewed for so long is taken back.
        descriptors: how each descriptor is called.
    """

    device: Word
    partition: Count
    header_index: Count
    slab_bytes: Bytes
    slab_count: Count
    header_slabs: Count
    isolation: Word
    object_bytes: Annotated[tuple[Bytes, ...], Meta(max_length=DESCRIPTORS_MAX)]
    slabs_max: Count
    gate_window: Count
    has_gates: bool
    lease_ttl_ms: Milliseconds
    descriptors: Annotated[tuple[Word, ...], Meta(max_length=DESCRIPTORS_MAX)]


@dataclass(frozen=True, slots=True)
class Rejected:
    """It may not.

    Args:
        sentence: why.
        is_final: asking again as it is would be of no use.
    """

    sentence: Sentence
    is_final: bool


@dataclass(frozen=True, slots=True)
class AskGrow:
    """The tenant asks for slabs that hold `blocks` more blocks."""

    blocks: Number


@dataclass(frozen=True, slots=True)
class Granted:
    """The slabs are its own until they are taken back; its mailbox says so too.

    Args:
        lease_id: of the loan.
        lease_epoch: of the loan.
        slabs: whose descriptors come with this, in order; none where all of the pool is mapped.
    """

    lease_id: Number
    lease_epoch: Number
    slabs: Annotated[tuple[Count, ...], Meta(max_length=DESCRIPTORS_MAX)] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """No, or not now: a `rose.events.Refusal`, its reason by name."""

    reason: Word
    retry_after_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class AskReason:
    """The tenant asks why the gate stays closed; the answer is `Refused`."""


@dataclass(frozen=True, slots=True)
class AskLedger:
    """Somebody wants to look, and to borrow nothing."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The descriptor of the ledger comes with it.

    Args:
        pid: of serving's process.
        cap: (bytes that may be on loan now, milliseconds for which that holds); infinite for as
            long as the device is open, 0 when it ran out. None where nobody has set a cap.
        refusals: quanta refused so far, by reason.
        binding: what the newest refused certificate failed on, as a sentence.
    """

    pid: Count
    cap: tuple[Bytes, Milliseconds] | None = None
    refusals: Annotated[dict[Word, Number], Meta(max_length=64)] = field(default_factory=dict)
    binding: Sentence | None = None


Question = Hello | AskGrow | AskReason | AskLedger
Answer = Welcome | Rejected | Granted | Refused | Ledger

_KINDS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        Hello,
        AskGrow,
        AskReason,
        AskLedger,
        Welcome,
        Rejected,
        Granted,
        Refused,
        Ledger,
    )
}


def encode(message: Question | Answer) -> bytes:
    """Return the bytes of a message: its kind, and its fields in order."""
    return msgspec.msgpack.encode((type(message).__name__, message))


def decode(payload: bytes) -> Question | Answer:
    """Return the message.

    Raises:
        CorruptData: these bytes are no message, or a field of it is out of its range.
    """
    try:
        kind, body = msgspec.msgpack.decode(payload, type=tuple[str, msgspec.Raw])
        message: Question | Answer = msgspec.msgpack.decode(body, type=_KINDS[kind])
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise CorruptData(f"no message of rose: {error}") from error
    return message
