"""Messages between a device and a tenant or observer in another process.

Revocations and reports go through shared memory instead: see the ledger and the mailbox in
`docs/protocol.md`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from rose.errors import CorruptData
from rose.memory import KVGeometry
from rose.memory.mapped import DESCRIPTORS_MAX

FORMAT: Final = 4
# Larger than every message.
MESSAGE_BYTES_MAX: Final = 1 << 20

# Ranges of the fields; `decode` checks them.
_INT32_MAX: Final = (1 << 31) - 1
Count = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
Bytes = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Milliseconds = Annotated[float, Meta(ge=0)]  # may be infinite, but not NaN
Lengths = tuple[Milliseconds, Milliseconds]  # the fields of a `SegmentLimit`
Word = Annotated[str, Meta(max_length=64)]
Sentence = Annotated[str, Meta(max_length=1 << 16)]


@dataclass(frozen=True, slots=True)
class Hello:
    """A process asks to become the borrower.

    Args:
        geometry: KV layout of the borrower's model.
        limit_bytes: largest size of the memory on loan.
        format: version of these messages; a device accepts only its own version.
    """

    geometry: KVGeometry
    limit_bytes: Bytes
    format: Count = FORMAT


@dataclass(frozen=True, slots=True)
class Welcome:
    """The device admits the tenant. The message also carries file descriptors.

    Args:
        device: "cpu", or the UUID of serving's GPU. An ordinal may differ between processes.
        partition: id of the tenant's partition.
        header_index: index of the tenant's own header slab.
        slab_bytes: size of a slab.
        slab_count: number of lendable slabs of the pool.
        header_slabs: number of header slabs, which precede the lendable slabs.
        isolation: "shared": this message carries the pool's memory objects. "mapped": it carries
            only the tenant's header slab; each other slab comes with its grant.
        object_bytes: size of each memory object that this message carries, in order.
        slabs_max: largest number of slabs that the tenant can ever hold.
        gate_window: largest number of segments that wait in the stream of a GPU.
        has_gates: whether a step is divided by gates; otherwise it is one segment.
        lease_ttl_ms: lifetime of a loan without renewal.
        descriptors: name of each file descriptor that the message carries, in order.
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
        is_final: whether the same request can never succeed.
        retry_after_ms: milliseconds until a retry can succeed; 0: unknown.
    """

    sentence: Sentence
    is_final: bool
    retry_after_ms: Milliseconds = 0.0


@dataclass(frozen=True, slots=True)
class AskGrow:
    """The tenant requests slabs for `blocks` more blocks."""

    blocks: Number


@dataclass(frozen=True, slots=True)
class Granted:
    """The tenant owns the slabs until they are taken back; its mailbox lists them too.

    Args:
        slabs: ids of the slabs whose descriptors this message carries, in order; empty if the
            tenant maps the whole pool.
    """

    slabs: Annotated[tuple[Count, ...], Meta(max_length=DESCRIPTORS_MAX)] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A `rose.events.Refusal`; `reason` is the name of its `Reason`."""

    reason: Word
    retry_after_ms: Milliseconds
    segment: Lengths | None = None


@dataclass(frozen=True, slots=True)
class AskReason:
    """The tenant asks why the gate stays closed; the answer is `Refused`."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The tenant leaves in order. Without this message its end counts as a crash."""


@dataclass(frozen=True, slots=True)
class AskLedger:
    """An observer asks for the ledger."""


@dataclass(frozen=True, slots=True)
class SetLimit:
    """An operator limits the loans; the answer is `Ledger`.

    Args:
        share: largest share of the pool on loan, 0 to 1; valid until the next such message.
    """

    share: Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The answer to an observer. The message carries the ledger's descriptor.

    Args:
        pid: id of serving's process.
        device: "cpu", or the UUID of serving's GPU.
        cap: (largest number of bytes on loan, milliseconds until the cap expires). The time is
            infinite if the cap never expires, and 0 if it has expired. None: there is no cap.
        refusals: number of refused quanta so far, by reason.
        binding: the condition that the newest refused certificate violated, as a sentence.
        kills: one sentence for each borrower that serving killed, the newest last.
        waited_ms: time that serving waited for segments beyond their certificates in the last ten
            minutes.
        wait_budget_ms: largest allowed value of `waited_ms`.
        segment: refusal because of the length of the borrower's segments, if it is the newest.
        barred: why no borrower may attach now, as a sentence.
    """

    pid: Count
    device: Word
    cap: tuple[Bytes, Milliseconds] | None = None
    refusals: Annotated[dict[Word, Number], Meta(max_length=64)] = field(default_factory=dict)
    binding: Sentence | None = None
    kills: Annotated[tuple[Sentence, ...], Meta(max_length=64)] = ()
    waited_ms: Milliseconds = 0.0
    wait_budget_ms: Milliseconds = 0.0
    segment: Lengths | None = None
    barred: Sentence | None = None


Question = Hello | AskGrow | AskReason | Leave | AskLedger | SetLimit
Answer = Welcome | Rejected | Granted | Refused | Ledger

_KINDS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        Hello,
        AskGrow,
        AskReason,
        Leave,
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
    """Encode a message as the name of its kind and its fields."""
    return msgspec.msgpack.encode((type(message).__name__, message))


def decode(payload: bytes) -> Question | Answer:
    """Decode a message.

    Raises:
        CorruptData: the bytes are not a message, or a field is out of range.
    """
    try:
        kind, body = msgspec.msgpack.decode(payload, type=tuple[str, msgspec.Raw])
        message: Question | Answer = msgspec.msgpack.decode(body, type=_KINDS[kind])
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise CorruptData(f"the bytes are not a message of rose: {error}") from error
    return message
