"""Tiles of a GPU that are packed together give the same part as tiles packed alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import numpy as np
import pytest

from rose.transfer import Contributor
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.strat import strat_unpack
from rose.transfer.publishing import contributor as subject
from rose.transfer.publishing.contributor import Encoding, PackedPart
from rose.transfer.publishing.selection import Selection
from rose.transfer.tiles import Row, Tiles
from tests.transfer.worker import COUNT, TILES, Bits


@contextmanager
def running(work: Callable[[], None], over: Event) -> Iterator[None]:
    """Run `work` in a thread, which ends after `over` is set."""
    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def versions() -> tuple[Bits, Bits]:
    """Return weights before and after a step that leaves the third tile."""
    rng = np.random.default_rng(2)
    old = rng.integers(0, 1 << 16, COUNT, dtype=np.uint16)
    new = old + (rng.random(COUNT) < 0.1)
    new[TILES[2].where] = old[TILES[2].where]
    return new.astype(np.uint16), old


def contributor_of(old: Bits) -> Contributor:
    selections = {4: Selection(share=0.5)}  # packed alone
    return Contributor(Row(old.copy(), TILES), TILES, selections=selections)


def test_part_of_tiles_packed_together_is_that_of_tiles_packed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, old = versions()
    alone, together = PackedPart(), PackedPart()
    contributor_of(old).pack(Row(new, TILES), alone)
    calls: list[int] = []
    pack = subject.delta_pack

    def counted(new, shadow, **options):
        calls.append(len(new))
        return pack(new, shadow, **options)

    copied: list[Bits] = []

    def copy(bits: Bits) -> Bits:
        copied.append(bits.copy())
        return copied[-1]

    monkeypatch.setattr(subject, "delta_pack", counted)
    monkeypatch.setattr(subject, "gpu_of", lambda _bits: "cuda:0")
    monkeypatch.setattr(subject, "_one_reading", copy)
    monkeypatch.setattr(subject, "_TILES_AT_ONCE", 5)
    contributor = contributor_of(old)
    contributor.pack(Row(new, TILES), together)
    assert len(TILES) == 16
    assert calls == [4, 5, 5, 1]  # the fourth is among the selected
    assert len(copied) == len(TILES)  # the kernels read an element several times
    assert together.frames == alone.frames
    assert together.chunks == alone.chunks
    assert list(together.deltas) == list(alone.deltas) == [one for one in range(16) if one != 2]
    assert contributor.take_back(together)


def test_shadow_goes_back_if_a_frame_of_tiles_packed_together_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, old = versions()
    monkeypatch.setattr(subject, "gpu_of", lambda _bits: "cuda:0")
    monkeypatch.setattr(subject, "_one_reading", np.copy)

    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(subject, "chunk_of", no_memory)
    contributor, part = contributor_of(old), PackedPart()
    with pytest.raises(MemoryError):
        contributor.pack(Row(new, TILES), part)
    assert contributor.take_back(part)


def test_only_tiles_of_a_gpu_are_packed_together() -> None:
    class Tile:
        device = "cuda:1"

    assert subject.gpu_of(Tile()) == "cuda:1"
    assert subject.gpu_of(np.zeros(3)) is None
    assert subject.gpu_of(pytest.importorskip("torch").zeros(3)) is None


@pytest.mark.parametrize("encoding", ["gap", "strat"])
def test_tiles_that_another_thread_writes_are_packed_as_one_reading(encoding: Encoding) -> None:
    rng = np.random.default_rng(4)
    tiles = Tiles.of(1 << 20)
    old = (rng.standard_normal(tiles.count).astype(np.float32).view(np.uint32) >> 16).astype("u2")
    new, shadow, over = old.copy(), Row(old.copy(), tiles), Event()
    weights, held = Row(new, tiles), Row(old.copy(), tiles)

    def write() -> None:
        while not over.is_set():
            np.add(new, rng.random(len(new)) < 0.02, out=new, casting="unsafe")

    contributor = Contributor(shadow, tiles, encoding=encoding)
    with running(write, over):
        for _ in range(30):
            part = PackedPart()
            contributor.pack(weights, part)
            contributor.keep(part)
            for tile, frame in part.frames.items():
                delta = strat_unpack(Delta.from_bytes(frame), held.bits(tile))
                held.apply(tile, delta, undo=False)
            assert contributor.digests.total == shadow.digests().total == held.digests().total
            assert contributor.take_back(PackedPart())
