"""Who only pulls finds the chunks, also after their server was started again elsewhere."""

import pytest

from rose.errors import Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.receiving.reader_source import ReaderSource

CHUNK = Chunk(0, 1, 1, bytes(32), (0, 0))


class Elsewhere:
    """Knows where its chunks are only when it has told of versions since they moved."""

    def __init__(self) -> None:
        self.is_known = False
        self.asked: list[tuple[int, float]] = []
        self.reports: list[str] = []

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        self.asked.append((after_n, timeout_s))
        self.is_known = True
        return []

    def seed(self, n: int | None, tiles: object) -> None:
        self.asked.append((-7, 0.0))

    def chunks(self, key: UpdateKey, wanted: list[Chunk]):
        if not self.is_known:
            raise Unavailable("nobody said where")
        for one in wanted:
            yield one.tile, b"x"

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:
        self.reports.append(receiver)


def test_reader_asks_once_and_again_after_a_failure() -> None:
    there = Elsewhere()
    reader = ReaderSource(there)
    key = UpdateKey(1, 0)
    assert list(reader.chunks(key, [CHUNK])) == [(0, b"x")]
    assert list(reader.chunks(key, [CHUNK])) == [(0, b"x")]
    assert len(there.asked) == 1
    assert there.asked[0][1] == 0.0
    there.is_known = False
    with pytest.raises(Unavailable):
        list(reader.chunks(key, [CHUNK]))
    assert list(reader.chunks(key, [CHUNK])) == [(0, b"x")]
    assert len(there.asked) == 2


def test_all_else_is_passed_on() -> None:
    there = Elsewhere()
    reader = ReaderSource(there)
    reader.report("one", 1, True, (0, 0))
    assert reader.seed(None, ()) is None
    assert reader.wait_manifests(3, 0.5) == []
    assert there.reports == ["one"]
    assert there.asked == [(-7, 0.0), (3, 0.5)]
