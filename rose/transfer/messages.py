"""What receivers and a weight server say to each other: dataclasses as msgpack, each versioned."""

from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from rose.errors import CorruptData, InvalidArgument
from rose.transfer.manifest import Manifest

FORMAT: Final = 2
SERVICE: Final = "rose.transfer.Weights"
TOKEN_KEY: Final = "rose-token"  # of the call's metadata
REQUEST_BYTES_MAX: Final = 1 << 20  # a seed of some 200,000 tiles
REPLY_BYTES_MAX: Final = 64 << 20  # manifests of some 200,000 tiles

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """Ask for versions above a number, and wait for one."""

    after_n: int
    timeout_ms: int
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class SeedRequest:
    """Ask for a version, the newest where n is None, with some tiles whole."""

    n: int | None
    tiles: tuple[int, ...]
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class ManifestsReply:
    """Answer both: what there is, and the port of this host that gives the chunks.

    To a `SeedRequest` it is the seed, or nothing where it cannot be made.
    """

    manifests: tuple[Manifest, ...]
    chunk_port: int
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Say what came of a version."""

    receiver: str
    n: int
    is_match: bool
    digest: tuple[int, int]
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class ReportReply:
    """Say that it was heard."""

    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class _Envelope:
    """What every message has, whatever its version."""

    format: int


def encode(message: object) -> bytes:
    """Return a message as bytes."""
    return msgspec.msgpack.encode(message)


def decode(kind: type[T], content: bytes) -> T:
    """Read a message.

    Raises:
        CorruptData: the bytes are no such message.
        InvalidArgument: it is of another version.
    """
    try:
        version = msgspec.msgpack.decode(content, type=_Envelope).format
        if version == FORMAT:
            return msgspec.msgpack.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptData(f"these bytes are no {kind.__name__}: {error}") from error
    raise InvalidArgument(
        f"the {kind.__name__} has version {version}; this rose reads version {FORMAT}"
    )
