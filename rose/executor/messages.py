"""Messages between a device and a tenant in another process, before and between loans.

Urgent data goes through shared memory instead: see the ledger and the mailbox in
`docs/protocol.md`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from rose.errors import CorruptData
from rose.memory import KVGeometry

FORMAT: Final = 2
# Exceeds every message; a grant lists its slabs with seven bytes each.
MESSAGE_BYTES_MAX: Final = 1 << 20
# Limit of the kernel for one message. A pool of 140 GiB in objects of 1 GiB needs 140.
DESCRIPTORS_MAX: Final = 253

# Ranges of the fields; `decode` checks them.
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
        geometry: KV layout of the tenant's model.
        limit_bytes: maximum memory on loan.
        format: version of these messages; a device accepts only its own.
    """

    geometry: KVGeometry
    limit_bytes: Bytes
    format: Count = FORMAT


@dataclass(frozen=True, slots=True)
class Welcome:
    """The device admits the tenant. File descriptors come with this, in order of `descriptors`.

    Args:
        device: "cpu" or "cuda:<n>".
        partition: id of the tenant's partition.
        header_index: index of the tenant's own header slab.
        slab_bytes: size of a slab.
        slab_count: lendable slabs of the pool.
        header_slabs: slabs in front of the lendable ones.
        isolation: "shared": the pool's memory objects come with this message. "mapped": only the
            tenant's header slab does; each other slab comes with its grant.
        object_bytes: size of each memory object that came, in order.
        slabs_max: maximum slabs the tenant could ever hold.
        gate_window: segments that may wait in the stream of a GPU.
        has_gates: False makes each step one segment.
        lease_ttl_ms: lifetime of a loan without renewal.
        descriptors: name of each descriptor.
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
    """The device rejects the tenant.

    Args:
        sentence: the reason.
        is_final: True if the same request will never succeed.
    """

    sentence: Sentence
    is_final: bool


@dataclass(frozen=True, slots=True)
class AskGrow:
    """The tenant requests slabs for `blocks` more blocks."""

    blocks: Number


@dataclass(frozen=True, slots=True)
class Granted:
    """The tenant owns the slabs until they are taken back; its mailbox lists them too.

    Args:
        lease_id: id of the loan.
        lease_epoch: epoch of the loan.
        slabs: slabs whose descriptors come with this, in order; empty if the whole pool is mapped.
    """

    lease_id: Number
    lease_epoch: Number
    slabs: Annotated[tuple[Count, ...], Meta(max_length=DESCRIPTORS_MAX)] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A `rose.events.Refusal`, its reason by name."""

    reason: Word
    retry_after_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class AskReason:
    """The tenant asks why the gate stays closed; the answer is `Refused`."""


@dataclass(frozen=True, slots=True)
class AskLedger:
    """An observer asks for the ledger."""


@dataclass(frozen=True, slots=True)
class SetLimit:
    """An operator limits the loans; the answer is `Ledger`.

    Args:
        share: maximum share of the pool on loan, until the next such message.
    """

    share: Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger's descriptor comes with this.

    Args:
        pid: id of serving's process.
        cap: (maximum bytes on loan, remaining milliseconds): infinity until the device closes, 0
            after the cap expired. None without a cap.
        refusals: refused quanta so far, by reason.
        binding: reason of the newest refused certificate, as a sentence.
    """

    pid: Count
    cap: tuple[Bytes, Milliseconds] | None = None
    refusals: Annotated[dict[Word, Number], Meta(max_length=64)] = field(default_factory=dict)
    binding: Sentence | None = None


Question = Hello | AskGrow | AskReason | AskLedger | SetLimit
Answer = Welcome | Rejected | Granted | Refused | Ledger

_KINDS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        Hello,
        AskGrow,
        AskReason,
        AskLedger,
        SetLimit,
        Welcome,
        Rejected,
        Granted,
        Refused,
        Ledger,
    )
}


def encode(message: Question | Answer) -> bytes:
    """Encode a message as its kind and its fields in order."""
    return msgspec.msgpack.encode((type(message).__name__, message))


def decode(payload: bytes) -> Question | Answer:
    """Decode a message.

    Raises:
        CorruptData: the bytes are no message, or a field is out of range.
    """
    try:
        kind, body = msgspec.msgpack.decode(payload, type=tuple[str, msgspec.Raw])
        message: Question | Answer = msgspec.msgpack.decode(body, type=_KINDS[kind])
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise CorruptData(f"the bytes are not a message of rose: {error}") from error
    return message
