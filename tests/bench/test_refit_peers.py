"""Peers bring every rank to the trainer's bits, by themselves and across a link."""

from pathlib import Path

import numpy as np
import pytest

from bench.netns import check_able, shaped_link
from bench.refit_peers import REFIT_PEERS, Layout, RefitPeer
from bench.refit_ranks import peer_trainer
from bench.versions import Versions, two_versions
from rose.errors import CorruptData, InvalidArgument, Unavailable

LAYOUT = Layout((40_000, 64, 120_002, 2), ranks=2)
every_peer = pytest.mark.parametrize("peer", REFIT_PEERS, ids=lambda peer: peer.name)


@pytest.fixture(autouse=True)
def _needs_torch(request: pytest.FixtureRequest) -> None:
    if "verl" in request.node.name:
        pytest.importorskip("torch")


def why_no_link() -> str:
    try:
        check_able()
    except Unavailable as error:
        return str(error)
    return ""


needs_a_link = pytest.mark.skipif(bool(why_no_link()), reason=why_no_link())


@pytest.fixture(scope="module")
def versions() -> Versions:
    return two_versions(LAYOUT.count, density=0.01)


def test_the_rows_of_the_ranks_make_up_the_model() -> None:
    canonical = np.arange(LAYOUT.count, dtype=np.uint32).astype(np.uint16)
    rows = [LAYOUT.row_of(rank, canonical) for rank in range(2)]
    for index in range(len(LAYOUT.counts)):
        parts = [row[LAYOUT.held(index)] for row in rows]
        assert np.array_equal(np.concatenate(parts), canonical[LAYOUT.tensor(index)])
    assert sum(len(row) for row in rows) == LAYOUT.count


def test_a_tensor_that_cannot_be_cut_evenly_is_refused() -> None:
    with pytest.raises(
        InvalidArgument, match=r"counts must be multiples of the 2 ranks, got \(3,\)"
    ):
        Layout((3,), ranks=2)


def test_a_layout_like_a_transformer_is_as_large_as_asked() -> None:
    layout = Layout.like_a_transformer(20_000_000, ranks=2)
    assert 20_000_000 <= layout.count < 35_000_000


@every_peer
def test_a_peer_brings_every_part_to_the_trainers_bits(peer: RefitPeer, versions: Versions) -> None:
    shadow = versions.old.copy()
    rows = [LAYOUT.row_of(rank, versions.old) for rank in range(2)]
    for new in (versions.new, versions.old, versions.old):
        for index, count in enumerate(LAYOUT.counts):
            where = LAYOUT.tensor(index)
            frame = peer.pack(new[where], shadow[where])
            for rank, row in enumerate(rows):
                peer.apply(frame, count, LAYOUT.part(index, rank), row[LAYOUT.held(index)])
        for rank, row in enumerate(rows):
            assert np.array_equal(row, LAYOUT.row_of(rank, new))


@pytest.mark.parametrize("peer", REFIT_PEERS[1::2], ids=lambda peer: peer.name)
def test_a_peer_with_a_checksum_refuses_another_payload(
    peer: RefitPeer, versions: Versions
) -> None:
    frame = bytearray(peer.pack(versions.new, versions.old.copy()))
    frame[0] ^= 1
    with pytest.raises(CorruptData):
        peer.apply(bytes(frame), LAYOUT.count, slice(None), versions.old.copy())


@needs_a_link
@every_peer
def test_a_peer_brings_ranks_across_a_link_to_the_trainers_bits(
    peer: RefitPeer, versions: Versions, tmp_path: Path
) -> None:
    np.save(tmp_path / "old.npy", versions.old)
    with (
        shaped_link(1e9) as link,
        peer_trainer(peer, LAYOUT, versions.old, tmp_path, link) as trainer,
    ):
        before = link.near.sent_bytes()
        payload = [trainer.update(new) for new in (versions.new, versions.old, versions.new)]
        crossed = link.near.sent_bytes() - before
        trainer.check_ranks(versions.new)
        # Once, not once for each rank: 1.5 leaves room for headers and no second copy.
        assert sum(payload) <= crossed <= 1.5 * sum(payload) + 20_000
        with pytest.raises(CorruptData, match=f"{peer.name}: rank 0 has other weights"):
            trainer.check_ranks(versions.old)
