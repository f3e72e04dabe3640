from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Empty(_message.Message):
    __slots__ = ("format",)
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    format: int
    def __init__(self, format: _Optional[int] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("format", "name", "role", "layout", "chunk_port", "relays", "tensors")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_PORT_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    format: int
    name: str
    role: str
    layout: bytes
    chunk_port: int
    relays: _containers.RepeatedCompositeFieldContainer[Relay]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, format: _Optional[int] = ..., name: _Optional[str] = ..., role: _Optional[str] = ..., layout: _Optional[bytes] = ..., chunk_port: _Optional[int] = ..., relays: _Optional[_Iterable[_Union[Relay, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class Relay(_message.Message):
    __slots__ = ("address", "tiles")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    address: str
    tiles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, address: _Optional[str] = ..., tiles: _Optional[_Iterable[int]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "aliases")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    aliases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., aliases: _Optional[_Iterable[str]] = ...) -> None: ...

class KeptHello(_message.Message):
    __slots__ = ("format", "hello", "sha256")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    format: int
    hello: bytes
    sha256: bytes
    def __init__(self, format: _Optional[int] = ..., hello: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("format", "after_n", "timeout_ms", "after_base_n", "run")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    AFTER_N_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    AFTER_BASE_N_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    format: int
    after_n: int
    timeout_ms: int
    after_base_n: int
    run: str
    def __init__(self, format: _Optional[int] = ..., after_n: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., after_base_n: _Optional[int] = ..., run: _Optional[str] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("format", "n", "tiles")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    format: int
    n: int
    tiles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, format: _Optional[int] = ..., n: _Optional[int] = ..., tiles: _Optional[_Iterable[int]] = ...) -> None: ...

class ManifestsReply(_message.Message):
    __slots__ = ("format", "chunk_port", "manifests", "is_more")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_PORT_FIELD_NUMBER: _ClassVar[int]
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    IS_MORE_FIELD_NUMBER: _ClassVar[int]
    format: int
    chunk_port: int
    manifests: _containers.RepeatedCompositeFieldContainer[Manifest]
    is_more: bool
    def __init__(self, format: _Optional[int] = ..., chunk_port: _Optional[int] = ..., manifests: _Optional[_Iterable[_Union[Manifest, _Mapping]]] = ..., is_more: bool = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("format", "receiver", "n", "is_match", "digest")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    IS_MATCH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    format: int
    receiver: str
    n: int
    is_match: bool
    digest: bytes
    def __init__(self, format: _Optional[int] = ..., receiver: _Optional[str] = ..., n: _Optional[int] = ..., is_match: bool = ..., digest: _Optional[bytes] = ...) -> None: ...

class GatherWords(_message.Message):
    __slots__ = ("format", "words")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    format: int
    words: bytes
    def __init__(self, format: _Optional[int] = ..., words: _Optional[bytes] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("run", "incarnation", "n")
    RUN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    run: str
    incarnation: int
    n: int
    def __init__(self, run: _Optional[str] = ..., incarnation: _Optional[int] = ..., n: _Optional[int] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("format", "version", "base", "digest", "base_digest", "layout", "tile_count", "count", "mac", "tile_digests", "chunk_tile", "chunk_nbytes", "chunk_changed", "chunk_sha256", "chunk_digest")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    TILE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TILE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_NBYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_CHANGED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SHA256_FIELD_NUMBER: _ClassVar[int]
    CHUNK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    format: int
    version: Version
    base: Version
    digest: bytes
    base_digest: bytes
    layout: bytes
    tile_count: int
    count: int
    mac: bytes
    tile_digests: bytes
    chunk_tile: _containers.RepeatedScalarFieldContainer[int]
    chunk_nbytes: _containers.RepeatedScalarFieldContainer[int]
    chunk_changed: _containers.RepeatedScalarFieldContainer[int]
    chunk_sha256: bytes
    chunk_digest: bytes
    def __init__(self, format: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., base: _Optional[_Union[Version, _Mapping]] = ..., digest: _Optional[bytes] = ..., base_digest: _Optional[bytes] = ..., layout: _Optional[bytes] = ..., tile_count: _Optional[int] = ..., count: _Optional[int] = ..., mac: _Optional[bytes] = ..., tile_digests: _Optional[bytes] = ..., chunk_tile: _Optional[_Iterable[int]] = ..., chunk_nbytes: _Optional[_Iterable[int]] = ..., chunk_changed: _Optional[_Iterable[int]] = ..., chunk_sha256: _Optional[bytes] = ..., chunk_digest: _Optional[bytes] = ...) -> None: ...

class PartAsk(_message.Message):
    __slots__ = ("format", "session", "number", "kept", "layout", "label", "tiles")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    format: int
    session: int
    number: int
    kept: int
    layout: bytes
    label: str
    tiles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, format: _Optional[int] = ..., session: _Optional[int] = ..., number: _Optional[int] = ..., kept: _Optional[int] = ..., layout: _Optional[bytes] = ..., label: _Optional[str] = ..., tiles: _Optional[_Iterable[int]] = ...) -> None: ...

class PartDigests(_message.Message):
    __slots__ = ("format", "tiles", "digests")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    format: int
    tiles: _containers.RepeatedScalarFieldContainer[int]
    digests: bytes
    def __init__(self, format: _Optional[int] = ..., tiles: _Optional[_Iterable[int]] = ..., digests: _Optional[bytes] = ...) -> None: ...

class PartFrame(_message.Message):
    __slots__ = ("format", "tile", "frame")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TILE_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    format: int
    tile: int
    frame: bytes
    def __init__(self, format: _Optional[int] = ..., tile: _Optional[int] = ..., frame: _Optional[bytes] = ...) -> None: ...
