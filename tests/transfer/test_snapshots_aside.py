"""Making a snapshot delays no version, and all its tiles are of one version."""

import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pytest

from rose.transfer.codec.delta import Delta
from rose.transfer.manifest import Chunk, Manifest, Version
from rose.transfer.publishing import publisher as publishing
from rose.transfer.publishing.contributor import Contributor, Encoding
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.tiles import Row
from tests.transfer.worker import LONG_S, TILES, Bits, changed, eventually, weights

BITS = [weights(1)]
for step in range(4):
    BITS.append(changed(BITS[-1], 70 + step, share=0.3))


class Slow(Contributor):
    """Stops in the first whole tile that is asked for, until it is let go."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__(Row(BITS[0].copy(), TILES), TILES, encoding=encoding)
        self.is_asked, self.is_let_go = threading.Event(), threading.Event()

    def whole(
        self, tiles: Iterable[int], undone: Sequence[dict[int, Delta]] = ()
    ) -> Iterator[tuple[Chunk, bytes]]:
        self.is_asked.set()
        assert self.is_let_go.wait(LONG_S)
        yield from super().whole(tiles, undone)


def made_while_publishing(n: int | None, encoding: Encoding) -> tuple[Publisher, Manifest, Bits]:
    """Publish twice while a snapshot is made; returns what came of it, and its bits."""
    slow = Slow(encoding)
    publisher = Publisher([slow], TILES, Version("run", 1, 1), VersionLog())
    publisher.publish(Row(BITS[1], TILES))
    made: list[tuple[Manifest, dict[int, bytes]]] = []

    def snapshot() -> None:
        snapshot = publisher.snapshot(n, range(len(TILES)))
        assert snapshot is not None
        made.append(snapshot)

    def publish() -> None:
        for bits in BITS[2:4]:
            publisher.publish(Row(bits, TILES))

    making, publish_all = threading.Thread(target=snapshot), threading.Thread(target=publish)
    making.start()
    assert slow.is_asked.wait(LONG_S)
    publish_all.start()
    eventually(lambda: publisher._publishing > 0)  # it waits for those few tiles, and is the next
    slow.is_let_go.set()
    publish_all.join(LONG_S)
    making.join(LONG_S)
    [(manifest, frames)] = made
    held = np.zeros_like(BITS[0])
    row = Row(held, TILES)
    for tile, frame in frames.items():
        row.apply(tile, Delta.from_bytes(frame), undo=False)
    assert row.digests().total == manifest.digest
    return publisher, manifest, held


@pytest.mark.parametrize(("n", "step"), [(None, 1), (2, 1), (1, 0)])
def test_snapshot_has_one_version_while_others_are_published(
    n: int | None, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SNAPSHOT_TILES", 3)
    publisher, manifest, held = made_while_publishing(n, "gap")
    assert manifest.version.n == step + 1
    assert publisher.version.n == 4
    assert np.array_equal(held, BITS[step])


def test_newest_snapshot_is_made_at_once_if_versions_cannot_be_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "SNAPSHOT_TILES", 3)
    _, manifest, held = made_while_publishing(None, "strat")
    assert np.array_equal(held, BITS[manifest.version.n - 1])


def test_no_tile_is_made_while_somebody_wants_to_publish() -> None:
    slow = Slow("gap")
    slow.is_let_go.set()
    publisher = Publisher([slow], TILES, Version("run", 1, 1), VersionLog())
    making = threading.Thread(target=lambda: publisher.snapshot(None, range(8)))
    with publisher._first():
        making.start()
        was_asked = slow.is_asked.wait(0.2)  # Bounds what is looked for, and nothing else.
    making.join(LONG_S)
    assert slow.is_asked.is_set()
    assert not was_asked


def test_version_is_sent_before_the_rest_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "SNAPSHOT_TILES", 1)
    order: list[object] = []

    class Noted(Slow):
        def pack(self, new: object, part: object) -> None:
            order.append("pack")
            super().pack(new, part)  # type: ignore[arg-type]

        def whole(
            self, tiles: Iterable[int], undone: Sequence[dict[int, Delta]] = ()
        ) -> Iterator[tuple[Chunk, bytes]]:
            order.extend(tiles)
            yield from super().whole(tiles, undone)

    slow = Noted("gap")
    publisher = Publisher([slow], TILES, Version("run", 1, 1), VersionLog())
    making = threading.Thread(target=lambda: publisher.snapshot(None, range(8)))
    publish_one = threading.Thread(target=lambda: publisher.publish(Row(BITS[1], TILES)))
    making.start()
    assert slow.is_asked.wait(LONG_S)
    publish_one.start()
    eventually(lambda: publisher._publishing > 0)
    slow.is_let_go.set()
    for thread in (making, publish_one):
        thread.join(LONG_S)
    assert order == [0, "pack", *range(1, 8)]
