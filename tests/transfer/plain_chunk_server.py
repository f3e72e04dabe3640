"""The chunk server of the core by itself, with update keys and seconds."""

from typing import Any

from typing_extensions import Self

from rose import _core
from rose.transfer.manifest import UpdateKey
from rose.transfer.wire.chunk_plane import core_files


class PlainServer:
    """Keeps frames and gives them to receivers; what else there is, the core's own server has."""

    def __init__(
        self, token: bytes, port: int = 0, *, tls: Any = None, park_s: float = 0, **knobs: int
    ) -> None:
        files = core_files(tls)
        self._core = _core.ChunkServer(
            "127.0.0.1", port, token, tls=files, park_ms=park_s * 1000, **knobs
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._core.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def put(self, key: UpdateKey, tile: int, frame: Any) -> None:
        self._core.put(key.n, key.base_n, tile, frame)

    def forget(self, key: UpdateKey) -> int:
        return self._core.forget(key.n, key.base_n)

    def take_misses(self, timeout_s: float) -> list[tuple[UpdateKey, int]]:
        misses = self._core.take_misses(timeout_s * 1000)
        return [(UpdateKey(n, base_n), tile) for n, base_n, tile in misses]

    def give(self, key: UpdateKey, tile: int, frame: Any) -> int:
        return self._core.give(key.n, key.base_n, tile, frame)

    def refuse(self, key: UpdateKey, tile: int) -> None:
        self._core.refuse(key.n, key.base_n, tile)

    def sent_bytes(self, key: UpdateKey) -> int:
        return self._core.sent_bytes(key.n, key.base_n)
