"""A commit changes all weights or none, whatever fails and whenever it pauses."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.row_publisher import RowPublisher
from rose.errors import CorruptData, InternalError
from rose.transfer import Delta
from rose.transfer.manifest import StagedVersion
from rose.transfer.publishing.log import VersionLog
from rose.transfer.receiving.commit import Commit, CommitState
from rose.transfer.receiving.puller import sound_delta
from rose.transfer.tiles import Row
from tests.transfer.worker import COUNT, TILE, TILES, Bits, changed, row_digest, weights

OLD = weights(1)
NEW = changed(OLD, 2, share=0.3)
TOUCHED = len(TILES)  # so much changes that every tile does


def staged_of(old: Bits, new: Bits) -> StagedVersion:
    """Return the version that leads from `old` to `new`."""
    log = VersionLog()
    publisher = RowPublisher(old, "run", 1, 1, log, tile_elements=TILE)
    manifest = publisher.publish(new)
    deltas = tuple(
        (one.tile, sound_delta(log.chunk(manifest.key, one.tile) or b"", one, TILES[one.tile]))
        for one in manifest.chunks
    )
    return StagedVersion(manifest, deltas)


DELTA = staged_of(OLD, NEW)


def snapshot(*tiles: int) -> StagedVersion:
    """Return the new version as a snapshot, of which some tiles, or all, were fetched."""
    manifest = RowPublisher(NEW, "run", 1, 1, VersionLog(), tile_elements=TILE).snapshot(None, ())
    assert manifest is not None
    row = Row(NEW, TILES)
    whole = {tile: row.bits(tile).copy() for tile in tiles or range(len(TILES))}
    return StagedVersion(manifest, whole=whole, digests=row.digests())


class Failing:
    """A row that fails at the n-th call of one method, before or after its effect."""

    def __init__(self, row: Row, *, method: str, at: int, is_late: bool = False) -> None:
        self.row = row
        self.method, self.at, self.is_late = method, at, is_late
        self.calls = {"apply": 0, "undo": 0, "write": 0, "digest": 0, "bits": 0}

    def _count(self, method: str) -> bool:
        self.calls[method] += 1
        return method == self.method and self.calls[method] == self.at

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        fails = self._count("undo" if undo else "apply")
        if not fails or self.is_late:
            self.row.apply(tile, delta, undo=undo)
        if fails:
            raise CorruptData("planted")

    def write(self, tile: int, elements: Bits) -> None:
        fails = self._count("write")
        if not fails or self.is_late:
            self.row.write(tile, elements)
        if fails:
            raise CorruptData("planted")

    def digest(self, tile: int) -> tuple[int, int]:
        if self._count("digest"):
            raise CorruptData("planted")
        return self.row.digest(tile)

    def bits(self, tile: int) -> Bits:
        if self._count("bits"):
            raise CorruptData("planted")
        return self.row.bits(tile)


def run(commit: Commit) -> CommitState:
    while commit.step():
        pass
    return commit.state


@pytest.mark.parametrize("has_digests", [True, False])
def test_commit_makes_the_weights_the_version(has_digests: bool) -> None:
    bits = OLD.copy()
    row = Row(bits, TILES)
    digests = row.digests() if has_digests else None
    commit = Commit(DELTA, row, row_digest(OLD), digests=digests)
    assert run(commit) is CommitState.COMMITTED
    assert np.array_equal(bits, NEW)
    assert commit.outcome.digest == row_digest(NEW) == DELTA.manifest.digest
    assert commit.digests is not None
    assert [commit.digests[tile] for tile in range(len(TILES))] == [
        row.digest(tile) for tile in range(len(TILES))
    ]


def test_commit_with_known_digests_reads_only_what_it_changes() -> None:
    new = OLD.copy()
    new[3 * TILE + 5] ^= 1
    row = Failing(Row(OLD.copy(), TILES), method="", at=0)
    digests = row.row.digests()
    assert run(Commit(staged_of(OLD, new), row, row_digest(OLD), digests=digests)) is (
        CommitState.COMMITTED
    )
    assert row.calls == {"apply": 1, "undo": 0, "write": 0, "digest": 1, "bits": 0}


def test_slice_is_at_most_one_tile() -> None:
    row = Failing(Row(OLD.copy(), TILES), method="", at=0)
    commit = Commit(DELTA, row, row_digest(OLD))
    before = 0
    while commit.step():
        assert row.calls["apply"] - before <= 1
        before = row.calls["apply"]
    assert row.calls["apply"] == TOUCHED


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("at", range(1, TOUCHED + 1))
def test_target_that_fails_in_any_tile_is_as_before_or_quarantined(at: int, is_late: bool) -> None:
    bits = OLD.copy()
    row = Failing(Row(bits, TILES), method="apply", at=at, is_late=is_late)
    commit = Commit(DELTA, row, row_digest(OLD))
    state = run(commit)
    if is_late:  # it changed the tile and said it had not: what is there has no name
        assert state is CommitState.QUARANTINED
        assert commit.digests is None
    else:
        assert state is CommitState.ROLLED_BACK
        assert np.array_equal(bits, OLD)
        assert commit.outcome.digest == row_digest(OLD)
        assert commit.outcome.reason == "planted"


@pytest.mark.parametrize("at", range(1, 2 * len(TILES) + 1))
def test_digest_that_fails_at_any_time_leaves_the_base(at: int) -> None:
    bits = OLD.copy()
    row = Failing(Row(bits, TILES), method="digest", at=at)
    assert run(Commit(DELTA, row, row_digest(OLD))) is CommitState.ROLLED_BACK
    assert np.array_equal(bits, OLD)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("method", ["write", "digest", "bits"])
@pytest.mark.parametrize("at", range(1, len(TILES) + 1))
def test_snapshot_that_fails_in_any_tile_leaves_the_old_bits(
    method: str, at: int, is_late: bool
) -> None:
    bits = weights(77)
    row = Failing(Row(bits, TILES), method=method, at=at, is_late=is_late)
    assert run(Commit(snapshot(), row, row_digest(OLD))) is CommitState.ROLLED_BACK
    assert np.array_equal(bits, weights(77))


def test_snapshot_that_is_not_the_version_goes_back_to_the_actual_bits() -> None:
    bits = weights(77)
    staged = snapshot(*range(1, len(TILES)))  # tile 0 was believed to be right
    commit = Commit(staged, Row(bits, TILES), row_digest(OLD), digests=Row(OLD, TILES).digests())
    assert run(commit) is CommitState.ROLLED_BACK
    assert np.array_equal(bits, weights(77))
    assert commit.outcome.digest == row_digest(weights(77))


def test_snapshot_that_cannot_be_undone_ends_in_quarantine() -> None:
    row = Failing(Row(weights(77), TILES), method="write", at=5)
    commit = Commit(snapshot(), row, (0, 0))
    while row.calls["write"] < 4:
        commit.step()
    assert commit.abandon() is CommitState.QUARANTINED


def test_snapshot_makes_any_weights_the_version_and_takes_their_elements() -> None:
    bits, staged = weights(77), snapshot()
    commit = Commit(staged, Row(bits, TILES), (0, 0), digests=Row(OLD, TILES).digests())
    assert run(commit) is CommitState.COMMITTED
    assert np.array_equal(bits, NEW)
    # So a commit takes no more memory than the staged tiles.
    assert np.array_equal(np.concatenate(list(staged.whole.values())), weights(77))


def test_snapshot_that_has_landed_is_only_named() -> None:
    row = Failing(Row(NEW.copy(), TILES), method="", at=0)
    staged = StagedVersion(snapshot().manifest, digests=row.row.digests())
    commit = Commit(staged, row, (0, 0))
    assert run(commit) is CommitState.COMMITTED
    assert commit.outcome.digest == row_digest(NEW)
    assert not any(row.calls.values())


@pytest.mark.parametrize("at", range(1, TOUCHED))
def test_undo_that_fails_ends_in_quarantine_and_the_other_tiles_go_back(at: int) -> None:
    bits = OLD.copy()
    row = Failing(Row(bits, TILES), method="undo", at=at)
    commit = Commit(DELTA, row, row_digest(OLD))
    while commit.state is not CommitState.APPLYING or row.calls["apply"] < TOUCHED - 1:
        commit.step()
    assert commit.abandon() is CommitState.QUARANTINED
    wrong = {index // TILE for index in np.flatnonzero(bits != OLD)}
    assert wrong == {TOUCHED - 1 - at}


def test_wrong_base_is_refused_before_anything_changes() -> None:
    other = changed(OLD, 9)
    row = Failing(Row(other.copy(), TILES), method="", at=0)
    for base_digest, digests in [
        (row_digest(other), None),  # the version is for another base
        (row_digest(OLD), None),  # the weights are not what they are held to be
        (row_digest(other), row.row.digests()),
    ]:
        commit = Commit(DELTA, row, base_digest, digests=digests)
        assert run(commit) is CommitState.ROLLED_BACK
        assert "the weights are not the base" in (commit.outcome.reason or "")
        assert commit.outcome.digest == row_digest(other)
    assert row.calls["apply"] == 0


@pytest.mark.parametrize("where", [0, 5 * TILE + 1, COUNT - 1])
def test_tile_that_was_corrupted_behind_known_digests_goes_back_under_its_own_digest(
    where: int,
) -> None:
    bits = OLD.copy()
    digests = Row(bits, TILES).digests()
    bits[where] ^= 1
    corrupted = bits.copy()
    commit = Commit(DELTA, Row(bits, TILES), row_digest(OLD), digests=digests)
    assert run(commit) is CommitState.ROLLED_BACK
    assert np.array_equal(bits, corrupted)
    assert commit.outcome.digest == row_digest(corrupted)
    assert commit.digests is not None
    assert commit.digests[where // TILE] == Row(corrupted, TILES).digest(where // TILE)


@pytest.mark.parametrize("is_early", [True, False])
def test_flipped_bit_in_an_unchanged_word_is_never_reported_as_the_version(is_early: bool) -> None:
    """The trainer digests changed words only; the receiver reads all words of a touched tile."""
    new = OLD.copy()
    new[5] ^= 1
    staged = staged_of(OLD, new)
    assert staged.manifest.digest == row_digest(new)
    assert [tile for tile, _ in staged.deltas] == [0]

    class Flipping(Failing):
        def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
            self.row.apply(tile, delta, undo=undo)
            if not undo and not is_early:
                self.row.bits(tile)[60] ^= 1

    bits = OLD.copy()
    digests = Row(bits, TILES).digests()
    if is_early:
        bits[60] ^= 1
    target = Flipping(Row(bits, TILES), method="", at=0)
    commit = Commit(staged, target, row_digest(OLD), digests=digests)
    state = run(commit)
    assert state is (CommitState.ROLLED_BACK if is_early else CommitState.QUARANTINED)
    assert commit.outcome.digest != staged.manifest.digest


@pytest.mark.parametrize("at", [2, 3, 4])
def test_tile_that_changes_while_it_goes_back_ends_in_quarantine(at: int) -> None:
    """At the digest after the undo, after the delta is applied again, or after that is undone."""
    new = OLD.copy()
    new[5] ^= 1

    class Flipping(Failing):
        def digest(self, tile: int) -> tuple[int, int]:
            if self.calls["digest"] + 1 == self.at:
                self.row.bits(tile)[9] ^= 1
            self.calls["digest"] += 1
            return self.row.digest(tile)

    bits = OLD.copy()
    digests = Row(bits, TILES).digests()
    bits[7] ^= 1
    commit = Commit(
        staged_of(OLD, new), Flipping(Row(bits, TILES), method="", at=at), row_digest(OLD),
        digests=digests,
    )  # fmt: skip
    assert run(commit) is CommitState.QUARANTINED
    assert commit.digests is None


def test_digest_that_is_not_the_trainers_goes_back() -> None:
    one = staged_of(OLD, changed(OLD, 5, share=0.3))
    mixed = StagedVersion(DELTA.manifest, one.deltas)
    bits = OLD.copy()
    commit = Commit(mixed, Row(bits, TILES), row_digest(OLD))
    assert run(commit) is CommitState.ROLLED_BACK
    assert np.array_equal(bits, OLD)
    assert "digest" in (commit.outcome.reason or "")


@given(steps=st.integers(0, 2 * len(TILES) + 2))
def test_commit_abandoned_after_any_slice_leaves_base_or_version(steps: int) -> None:
    bits = OLD.copy()
    commit = Commit(DELTA, Row(bits, TILES), row_digest(OLD))
    for _ in range(steps):
        commit.step()
    state = commit.abandon()
    is_done = state is CommitState.COMMITTED
    assert np.array_equal(bits, NEW if is_done else OLD)
    assert commit.outcome.is_abandoned == (not is_done)
    assert commit.abandon() is state  # and stays so
    assert not commit.step()


def test_error_of_somebody_else_passes_and_can_be_abandoned_after() -> None:
    class Broken(Failing):
        def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
            if tile == 3 and not undo:
                raise RuntimeError("not of rose")
            super().apply(tile, delta, undo=undo)

    bits = OLD.copy()
    commit = Commit(DELTA, Broken(Row(bits, TILES), method="", at=0), row_digest(OLD))
    with pytest.raises(RuntimeError):
        run(commit)
    assert commit.abandon() is CommitState.ROLLED_BACK
    assert np.array_equal(bits, OLD)


def test_outcome_is_available_after_the_end() -> None:
    with pytest.raises(InternalError):
        _ = Commit(DELTA, Row(OLD.copy(), TILES), row_digest(OLD)).outcome


@pytest.mark.parametrize("stage", [lambda: DELTA, snapshot])
def test_finished_commit_can_be_taken_back(stage: Callable[[], StagedVersion]) -> None:
    """As when another rank of the engine could not commit; the next commit works."""
    bits = OLD.copy()
    row = Row(bits, TILES)
    commit = Commit(stage(), row, row_digest(OLD), digests=row.digests())
    assert run(commit) is CommitState.COMMITTED
    outcome = commit.take_back("planted: rank 1 is missing")
    assert (outcome.state, outcome.is_abandoned) == (CommitState.ROLLED_BACK, True)
    assert outcome.digest == row_digest(OLD)
    assert np.array_equal(bits, OLD)
    again = Commit(stage(), row, outcome.digest, digests=outcome.digests)
    assert run(again) is CommitState.COMMITTED
    assert np.array_equal(bits, NEW)


def test_weights_changed_after_a_commit_that_is_taken_back_are_quarantined() -> None:
    bits = OLD.copy()
    row = Row(bits, TILES)
    commit = Commit(DELTA, row, row_digest(OLD), digests=row.digests())
    run(commit)
    bits[7] ^= 1
    assert commit.take_back("planted").state is CommitState.QUARANTINED
