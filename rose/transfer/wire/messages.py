"""What receivers, relays and publishers say to each other, and its bytes: protobuf, checked.

The values are dataclasses; `rose/transfer/wire/proto/weights.proto` says what crosses. Whatever
comes is either such a value or refused: nothing of protobuf is seen outside of this module.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.digests import Digest
from rose.transfer.manifest import CHUNK_BYTES_MAX, Manifest
from rose.transfer.wire.manifest_message import (
    as_digest,
    as_digests,
    digest_bytes,
    digests_bytes,
    manifest_of,
    manifest_to,
)
from rose.transfer.wire.proto import weights_pb2 as pb

FORMAT: Final = 4
SERVICE: Final = "rose.transfer.Weights"
PARTS_SERVICE: Final = "rose.transfer.Parts"
TOKEN_KEY: Final = "rose-token"  # of the call's metadata
REQUEST_BYTES_MAX: Final = 1 << 20  # a seed of some 200,000 tiles
REPLY_BYTES_MAX: Final = 64 << 20  # manifests of a million tiles together
PART_BYTES_MAX: Final = CHUNK_BYTES_MAX + 64
PART_TILES_MAX: Final = 1 << 17  # in one message of digests, or of a question

NAME_MAX: Final = 256
LABEL_MAX: Final = 4096
RELAYS_MAX: Final = 1024
TENSORS_MAX: Final = 1 << 18
MANIFESTS_MAX: Final = 1 << 13
_DIMENSIONS_MAX: Final = 16
_N_MAX: Final = (1 << 63) - 1
_LAYOUT_BYTES: Final = 32
ROLES: Final = ("publisher", "relay")

T = TypeVar("T")
C = TypeVar("C", bound=Sequence[Any])


@dataclass(frozen=True, slots=True)
class Empty:
    """Ask who serves, or say that something was heard."""


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """A relay, and the tiles that land there, ascending."""

    address: str
    tiles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of a checkpoint, with its dtype as the header of a safetensors file names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HelloReply:
    """Who serves, and what receiving from it takes.

    Args:
        name: of who serves.
        role: one of `ROLES`.
        layout: how the weights are cut, 64 hexadecimal digits; "" while that is not known.
        chunk_port: of the same host.
        relays: that tiles land at.
        tensors: of the checkpoint that the weights are, in its order; () where they are none.
    """

    name: str
    role: str
    layout: str = ""
    chunk_port: int = 0
    relays: tuple[RelayPlace, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptHello:
    """What a relay keeps on its disk of what upstream said: a `HelloReply`, and its SHA-256."""

    hello: bytes
    sha256: bytes


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """Ask for versions above a number, and wait for one.

    Args:
        after_n: the number.
        timeout_ms: how long to wait.
        after_base_n: of the last update that a reply had room for, which led to `after_n`; then it
            is what follows that one, and nobody waits.
    """

    after_n: int
    timeout_ms: int
    after_base_n: int | None = None


@dataclass(frozen=True, slots=True)
class SeedRequest:
    """Ask for a version, the newest where n is None, with some tiles whole."""

    n: int | None
    tiles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ManifestsReply:
    """Answer both: what there is, and the port of this host that gives the chunks.

    To a `SeedRequest` it is the seed, or nothing where it cannot be made. To a `WaitRequest` as
    much as fits, ascending; `is_more` says that there is more behind it.
    """

    manifests: tuple[Manifest, ...]
    chunk_port: int
    is_more: bool = False


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Say what came of a version."""

    receiver: str
    n: int
    is_match: bool
    digest: Digest


@dataclass(frozen=True, slots=True)
class PartAsk:
    """What every call of a part begins with.

    Args:
        session: of the publisher; whoever opens another one ends it.
        number: of the newest pack that was asked for, this one included; a call with a lower one
            than the rank has heard was given up, and says nothing.
        kept: of the newest pack that the log has; one that is packed and not kept is taken back.
        layout: how the publisher cuts the weights, of `Open`; else "".
        label: names the weights, of `Open` and `Pack`; else "".
        tiles: ascending, of `Whole`; else ().
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
        """Refuse tiles without a digest, and digests of no tile."""
        _at_most(self.digests, PART_TILES_MAX, "digests")
        if len(self.tiles) != len(self.digests):
            raise InvalidArgument(f"{len(self.tiles)} tiles have {len(self.digests)} digests")


@dataclass(frozen=True, slots=True)
class PartFrame:
    """A tile of a part, and its frame."""

    tile: int
    frame: bytes


def encode(message: object) -> bytes:
    """Return a message as bytes.

    Raises:
        InvalidArgument: a field does not fit, such as a name that is no text.
    """
    kind = _KINDS[type(message)]
    try:
        return bytes(kind(format=FORMAT, **_fields_of(message)).SerializeToString())
    except (ValueError, TypeError, DecodeError) as error:
        raise InvalidArgument(f"{type(message).__name__} cannot be sent: {error}") from error


def decode(kind: type[T], content: bytes) -> T:
    """Read a message.

    Raises:
        CorruptData: the bytes are no such message.
        InvalidArgument: it is of another version.
    """
    try:
        message = _KINDS[kind].FromString(content)
    except DecodeError as error:
        raise CorruptData(f"these bytes are no {kind.__name__}: {error}") from error
    if message.format != FORMAT:
        raise InvalidArgument(
            f"the {kind.__name__} has version {message.format}; this rose reads version {FORMAT}"
        )
    names = (one.name for one in fields(kind))  # type: ignore[arg-type]
    try:
        return kind(**{name: _received(message, name) for name in names})
    except InvalidArgument as error:
        raise CorruptData(f"these bytes are no {kind.__name__}: {error}") from error


def _fields_of(message: Any) -> dict[str, Any]:
    """Return the fields of a value as its message takes them; None is left out there."""
    names = [one.name for one in fields(message)]
    return {name: _SENT.get(name, _same)(getattr(message, name)) for name in names}


def _received(message: Any, name: str) -> Any:
    """Return a field of a message as its value takes it; None where it was left out."""
    is_optional = message.DESCRIPTOR.fields_by_name[name].has_presence
    if is_optional and not message.HasField(name):
        return None
    return _RECEIVED.get(name, _same)(getattr(message, name))


def _same(value: object) -> object:
    return value


# How fields are sent that are not what their message takes.
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
        raise InvalidArgument(f"role '{text:.32}' is none")
    return text


def _layout(content: bytes) -> str:
    if len(content) not in (0, _LAYOUT_BYTES):
        raise InvalidArgument(f"a layout of {len(content)} bytes")
    return content.hex()


def _relays(column: Sequence[Any]) -> tuple[RelayPlace, ...]:
    some = _at_most(column, RELAYS_MAX, "relays")
    return tuple(RelayPlace(_name(one.address), _tiles(one.tiles)) for one in some)


def _tensors(column: Sequence[Any]) -> tuple[TensorEntry, ...]:
    some = _at_most(column, TENSORS_MAX, "tensors")
    return tuple(TensorEntry(_label(one.name), _name(one.dtype), _shape(one.shape)) for one in some)


def _shape(column: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(_number, _at_most(column, _DIMENSIONS_MAX, "dimensions")))


def _manifests(column: Sequence[Any]) -> tuple[Manifest, ...]:
    return tuple(map(manifest_of, _at_most(column, MANIFESTS_MAX, "manifests")))


def _tiles(column: Sequence[int]) -> tuple[int, ...]:
    tiles = tuple(column)
    if any(one >= other for one, other in pairwise(tiles)):
        raise InvalidArgument("the tiles are not in order, each once")
    return tiles


def _name(text: str) -> str:
    return _at_most(text, NAME_MAX, "characters of a name")


def _label(text: str) -> str:
    return _at_most(text, LABEL_MAX, "characters of a label")


def _number(value: int) -> int:
    if value > _N_MAX:
        raise InvalidArgument(f"{value} is more than any number here")
    return value


def _port(value: int) -> int:
    if value >= 1 << 16:
        raise InvalidArgument(f"{value} is no port")
    return value


def _at_most(column: C, most: int, what: str) -> C:
    if len(column) > most:
        raise InvalidArgument(f"{len(column)} {what}: at most {most}")
    return column


# How fields are read, and refused, that a value does not take as they come.
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
    "tensors": _tensors,
    "tiles": _tiles,
}

# The message of each value, of the same name.
_KINDS: Final[Mapping[type[Any], Any]] = {
    kind: getattr(pb, kind.__name__)
    for kind in (
        Empty,
        HelloReply,
        KeptHello,
        WaitRequest,
        SeedRequest,
        ManifestsReply,
        ReportRequest,
        PartAsk,
        PartDigests,
        PartFrame,
    )
}
