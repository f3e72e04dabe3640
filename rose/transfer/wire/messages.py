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

FORMAT: Final = 3
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


@dataclass(frozen=True, slots=True)
class HelloRequest:
    """Ask who serves."""


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
        up_ms: how long it has served.
        layout: how the weights are cut, 64 hexadecimal digits; "" while that is not known.
        chunk_port: of the same host.
        relays: that tiles land at.
        tensors: of the checkpoint that the weights are, in its order; () where they are none.
    """

    name: str
    role: str
    up_ms: int
    layout: str = ""
    chunk_port: int = 0
    relays: tuple[RelayPlace, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()


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
class SubscribeRequest:
    """Say who receives."""

    receiver: str


@dataclass(frozen=True, slots=True)
class SubscribeReply:
    """Say that it was heard."""


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Say what came of a version."""

    receiver: str
    n: int
    is_match: bool
    digest: Digest


@dataclass(frozen=True, slots=True)
class ReportReply:
    """Say that it was heard."""


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
    """Some tiles of a part, and the digest of each."""

    tiles: tuple[int, ...]
    digests: tuple[Digest, ...]


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
    kind, _ = _KINDS[type(message)]
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
    its, of = _KINDS[kind]
    try:
        message = its.FromString(content)
    except DecodeError as error:
        raise CorruptData(f"these bytes are no {kind.__name__}: {error}") from error
    if message.format != FORMAT:
        raise InvalidArgument(
            f"the {kind.__name__} has version {message.format}; this rose reads version {FORMAT}"
        )
    try:
        value: T = of(message)
    except InvalidArgument as error:
        raise CorruptData(f"these bytes are no {kind.__name__}: {error}") from error
    return value


def _fields_of(message: Any) -> dict[str, Any]:
    """Return the fields of a value as its message takes them; None is left out there."""
    names = [one.name for one in fields(message)]
    return {name: _SENT.get(name, _same)(getattr(message, name)) for name in names}


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


def _hello_of(message: Any) -> HelloReply:
    _check_most(message.relays, RELAYS_MAX, "relays")
    _check_most(message.tensors, TENSORS_MAX, "tensors")
    if message.role not in ROLES:
        raise InvalidArgument(f"role '{message.role:.32}' is none")
    if len(message.layout) not in (0, _LAYOUT_BYTES):
        raise InvalidArgument(f"a layout of {len(message.layout)} bytes")
    return HelloReply(
        name=_name(message.name),
        role=message.role,
        up_ms=_number(message.up_ms),
        layout=message.layout.hex(),
        chunk_port=_port(message.chunk_port),
        relays=tuple(RelayPlace(_name(one.address), _tiles(one.tiles)) for one in message.relays),
        tensors=tuple(_tensor(one) for one in message.tensors),
    )


def _tensor(message: Any) -> TensorEntry:
    _check_most(message.shape, _DIMENSIONS_MAX, "dimensions")
    if len(message.name) > 16 * NAME_MAX:
        raise InvalidArgument(f"a tensor's name has {len(message.name)} characters")
    return TensorEntry(message.name, _name(message.dtype), tuple(map(_number, message.shape)))


def _wait_of(message: Any) -> WaitRequest:
    base_n = message.after_base_n if message.HasField("after_base_n") else None
    return WaitRequest(message.after_n, message.timeout_ms, base_n)


def _seed_of(message: Any) -> SeedRequest:
    n = _number(message.n) if message.HasField("n") else None
    return SeedRequest(n, _tiles(message.tiles))


def _manifests_of(message: Any) -> ManifestsReply:
    _check_most(message.manifests, MANIFESTS_MAX, "manifests")
    manifests = tuple(map(manifest_of, message.manifests))
    return ManifestsReply(manifests, _port(message.chunk_port), message.is_more)


def _report_of(message: Any) -> ReportRequest:
    digest = as_digest(message.digest)
    return ReportRequest(_name(message.receiver), _number(message.n), message.is_match, digest)


def _ask_of(message: Any) -> PartAsk:
    _check_most(message.label, LABEL_MAX, "characters of a label")
    numbers = (message.session, message.number, message.kept)
    return PartAsk(*numbers, message.layout.hex(), message.label, _tiles(message.tiles))


def _digests_of(message: Any) -> PartDigests:
    digests = as_digests(message.digests)
    _check_most(digests, PART_TILES_MAX, "digests")
    if len(message.tiles) != len(digests):
        raise InvalidArgument(f"{len(message.tiles)} tiles have {len(digests)} digests")
    return PartDigests(tuple(message.tiles), tuple(digests))


def _tiles(column: Sequence[int]) -> tuple[int, ...]:
    tiles = tuple(column)
    if any(one >= other for one, other in pairwise(tiles)):
        raise InvalidArgument("the tiles are not in order, each once")
    return tiles


def _name(text: str) -> str:
    if len(text) > NAME_MAX:
        raise InvalidArgument(f"a name has {len(text)} characters: at most {NAME_MAX}")
    return text


def _number(value: int) -> int:
    if value > _N_MAX:
        raise InvalidArgument(f"{value} is more than any number here")
    return value


def _port(value: int) -> int:
    if value >= 1 << 16:
        raise InvalidArgument(f"{value} is no port")
    return value


def _check_most(column: Sequence[object], most: int, what: str) -> None:
    if len(column) > most:
        raise InvalidArgument(f"{len(column)} {what}: at most {most}")


# The message of each value, and how it is read.
_KINDS: Final[Mapping[type[Any], tuple[Any, Callable[[Any], Any]]]] = {
    HelloRequest: (pb.HelloRequest, lambda _: HelloRequest()),
    HelloReply: (pb.HelloReply, _hello_of),
    WaitRequest: (pb.WaitRequest, _wait_of),
    SeedRequest: (pb.SeedRequest, _seed_of),
    ManifestsReply: (pb.ManifestsReply, _manifests_of),
    SubscribeRequest: (pb.SubscribeRequest, lambda one: SubscribeRequest(_name(one.receiver))),
    SubscribeReply: (pb.SubscribeReply, lambda _: SubscribeReply()),
    ReportRequest: (pb.ReportRequest, _report_of),
    ReportReply: (pb.ReportReply, lambda _: ReportReply()),
    PartAsk: (pb.PartAsk, _ask_of),
    PartDigests: (pb.PartDigests, _digests_of),
    PartFrame: (pb.PartFrame, lambda one: PartFrame(one.tile, one.frame)),
}
