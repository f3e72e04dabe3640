"""Messages between receivers, relays and publishers, as checked protobuf.

The values are dataclasses; `rose/transfer/proto/weights.proto` defines the bytes. Received
bytes become such a value or are refused. Protobuf objects stay in this module and
`manifest_bytes`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.digests import Digest
from rose.transfer.manifest import CHUNK_BYTES_MAX, Manifest
from rose.transfer.manifest_bytes import (
    as_digest,
    as_digests,
    digest_bytes,
    digests_bytes,
    manifest_of,
    manifest_to,
)
from rose.transfer.proto import weights_pb2 as pb

FORMAT: Final = 5
SERVICE: Final = "rose.transfer.Weights"
PARTS_SERVICE: Final = "rose.transfer.Parts"
TOKEN_KEY: Final = "rose-token"  # in the call's metadata
REQUEST_BYTES_MAX: Final = 64 << 20  # shard map of a rank with some 200,000 pieces
REPLY_BYTES_MAX: Final = 64 << 20  # manifests with a million tiles in total
PART_BYTES_MAX: Final = CHUNK_BYTES_MAX + 64
PART_TILES_MAX: Final = 1 << 17  # in one message of digests, or one request

NAME_MAX: Final = 256
LABEL_MAX: Final = 1 << 16  # names of tensors, see `named_rows`
RELAYS_MAX: Final = 1024
TENSORS_MAX: Final = 1 << 22  # more than a reply has room for
MANIFESTS_MAX: Final = 1 << 13
_DIMENSIONS_MAX: Final = 16
_N_MAX: Final = (1 << 63) - 1
_LAYOUT_BYTES: Final = 32
ROLES: Final = ("publisher", "relay")

T = TypeVar("T")
C = TypeVar("C", bound=Sequence[Any])


@dataclass(frozen=True, slots=True)
class Empty:
    """A message without fields: a request for the server's identity, or an acknowledgement."""


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """The address of a relay, and the tiles that it fetches in advance, ascending."""

    address: str
    tiles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A published tensor; the dtype is named as in safetensors headers.

    Args:
        aliases: further names of the same elements in the same order, such as tied weights.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HelloReply:
    """The server's identity, and what a receiver needs to know.

    Args:
        name: name of the server.
        role: one of `ROLES`.
        layout: layout id, 64 hexadecimal digits; "" if unknown.
        chunk_port: port for chunks, on the same host.
        relays: relays, each with the tiles that it fetches in advance.
        tensors: tensors of the checkpoint, in the checkpoint's order; () if the weights are not a
            checkpoint.
    """

    name: str
    role: str
    layout: str = ""
    chunk_port: int = 0
    relays: tuple[RelayPlace, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptHello:
    """A relay's copy on disk of upstream's `HelloReply`, and its SHA-256."""

    hello: bytes
    sha256: bytes


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """Request the versions above a number, and wait until one exists.

    Args:
        after_n: number of the newest known version.
        timeout_ms: longest wait, in milliseconds.
        after_base_n: number of the base of the last update in a partial reply; that update's
            version is `after_n`. Requests the rest of the reply, without a wait. None in a first
            request.
        run: run of the manifests that came before; "" at first.
    """

    after_n: int
    timeout_ms: int
    after_base_n: int | None = None
    run: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Request a snapshot of version `n` with the given tiles; None means the newest version."""

    n: int | None
    tiles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ManifestsReply:
    """Answer to a `WaitRequest` or a `SnapshotRequest`: manifests, and the server's chunk port.

    The answer to a `SnapshotRequest` has the snapshot, or no manifest if the snapshot cannot be
    made. The answer to a `WaitRequest` has the manifests that fit, ascending; `is_more` says
    whether more follow.
    """

    manifests: tuple[Manifest, ...]
    chunk_port: int
    is_more: bool = False


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Report the result of a receiver's attempt to commit version `n`."""

    receiver: str
    n: int
    is_match: bool
    digest: Digest


@dataclass(frozen=True, slots=True)
class GatherWords:
    """A call of a rank to the publisher, or the answer, packed by `rose.transfer.sharded.words`."""

    words: bytes


@dataclass(frozen=True, slots=True)
class PartAsk:
    """Request of every call to a `PartServer`.

    Args:
        session: number of the publisher's session; it ends when another session is opened.
        number: number of the newest requested pack, which may be this call. The rank refuses a call
            with a lower number than it has seen, since the publisher has given up that call.
        kept: number of the newest pack that the log has; the rank undoes a later pack.
        layout: publisher's layout id, in `Open`; else "".
        label: name of the weights, in `Open` and `Pack`; else "".
        tiles: tiles, ascending, in `Whole`; else ().
    """

    session: int
    number: int
    kept: int
    layout: str = ""
    label: str = ""
    tiles: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PartDigests:
    """Some tiles of a part, ascending, and the digest of each."""

    tiles: tuple[int, ...]
    digests: tuple[Digest, ...]

    def __post_init__(self) -> None:
        """Check that each tile has a digest."""
        _at_most(self.digests, PART_TILES_MAX, "digests")
        if len(self.tiles) != len(self.digests):
            raise InvalidArgument(
                f"{len(self.tiles)} tiles need {len(self.tiles)} digests, got {len(self.digests)}"
            )


@dataclass(frozen=True, slots=True)
class PartFrame:
    """A tile of a part, and its frame."""

    tile: int
    frame: bytes


def encode(message: object) -> bytes:
    """Encode a message.

    Raises:
        InvalidArgument: a field is invalid, such as a name that is not text.
    """
    kind = _KINDS[type(message)]
    try:
        return bytes(kind(format=FORMAT, **_fields_of(message)).SerializeToString())
    except (ValueError, TypeError, DecodeError) as error:
        raise InvalidArgument(f"{type(message).__name__} cannot be sent: {error}") from error


def decode(kind: type[T], content: bytes) -> T:
    """Decode a message.

    Raises:
        CorruptData: the bytes are not such a message.
        InvalidArgument: the message has another version of the format.
    """
    try:
        message = _KINDS[kind].FromString(content)
    except DecodeError as error:
        raise CorruptData(f"these bytes are not a {kind.__name__}: {error}") from error
    if message.format != FORMAT:
        raise InvalidArgument(
            f"the {kind.__name__} has version {message.format}; this rose reads version {FORMAT}"
        )
    names = (one.name for one in fields(kind))  # type: ignore[arg-type]
    try:
        return kind(**{name: _received(message, name) for name in names})
    except InvalidArgument as error:
        raise CorruptData(f"these bytes are not a {kind.__name__}: {error}") from error


def _fields_of(message: Any) -> dict[str, Any]:
    """Return the fields of a value as arguments for its message, which omits None."""
    names = [one.name for one in fields(message)]
    return {name: _SENT.get(name, _same)(getattr(message, name)) for name in names}


def _received(message: Any, name: str) -> Any:
    """Return a field of a received message in the form of the dataclass; None if it was omitted."""
    is_optional = message.DESCRIPTOR.fields_by_name[name].has_presence
    if is_optional and not message.HasField(name):
        return None
    return _RECEIVED.get(name, _same)(getattr(message, name))


def _same(value: object) -> object:
    return value


# Conversions of fields that the message stores in another form than the value.
_SENT: Final[Mapping[str, Callable[[Any], object]]] = {
    "layout": bytes.fromhex,
    "digest": digest_bytes,
    "digests": digests_bytes,
    "manifests": lambda some: [manifest_to(one) for one in some],
    "relays": lambda some: [_fields_of(one) for one in some],
    "tensors": lambda some: [_fields_of(one) for one in some],
}


def _role(text: str) -> str:
    if text not in ROLES:
        raise InvalidArgument(f"role '{text:.32}' must be one of {', '.join(ROLES)}")
    return text


def _layout(content: bytes) -> str:
    if len(content) not in (0, _LAYOUT_BYTES):
        raise InvalidArgument(f"a layout must have {_LAYOUT_BYTES} bytes, got {len(content)}")
    return content.hex()


def _relays(column: Sequence[Any]) -> tuple[RelayPlace, ...]:
    some = _at_most(column, RELAYS_MAX, "relays")
    return tuple(RelayPlace(_name(one.address), _tiles(one.tiles)) for one in some)


def _tensors(column: Sequence[Any]) -> tuple[TensorEntry, ...]:
    some = _at_most(column, TENSORS_MAX, "tensors")
    return tuple(
        TensorEntry(
            _label(one.name), _name(one.dtype), _shape(one.shape), tuple(map(_label, one.aliases))
        )
        for one in some
    )


def _shape(column: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(_number, _at_most(column, _DIMENSIONS_MAX, "dimensions")))


def _manifests(column: Sequence[Any]) -> tuple[Manifest, ...]:
    return tuple(map(manifest_of, _at_most(column, MANIFESTS_MAX, "manifests")))


def _tiles(column: Sequence[int]) -> tuple[int, ...]:
    tiles = tuple(column)
    if any(one >= other for one, other in pairwise(tiles)):
        raise InvalidArgument("tiles must be ascending, each once")
    return tiles


def _name(text: str) -> str:
    return _at_most(text, NAME_MAX, "characters of a name")


def _label(text: str) -> str:
    return _at_most(text, LABEL_MAX, "characters of a label")


def _number(value: int) -> int:
    if value > _N_MAX:
        raise InvalidArgument(f"number {value} must be at most {_N_MAX}")
    return value


def _port(value: int) -> int:
    if value >= 1 << 16:
        raise InvalidArgument(f"port {value} must be below 65536")
    return value


def _at_most(column: C, most: int, what: str) -> C:
    if len(column) > most:
        raise InvalidArgument(f"at most {most} {what} are allowed, got {len(column)}")
    return column


# Conversions and checks of received fields.
_RECEIVED: Final[Mapping[str, Callable[[Any], object]]] = {
    "chunk_port": _port,
    "digest": as_digest,
    "digests": lambda content: tuple(as_digests(content)),
    "label": _label,
    "layout": _layout,
    "manifests": _manifests,
    "n": _number,
    "name": _name,
    "receiver": _name,
    "relays": _relays,
    "role": _role,
    "run": _name,
    "tensors": _tensors,
    "tiles": _tiles,
}

# Message type of each value type, by name.
_KINDS: Final[Mapping[type[Any], Any]] = {
    kind: getattr(pb, kind.__name__)
    for kind in (
        Empty,
        HelloReply,
        KeptHello,
        WaitRequest,
        SnapshotRequest,
        ManifestsReply,
        ReportRequest,
        GatherWords,
        PartAsk,
        PartDigests,
        PartFrame,
    )
}
