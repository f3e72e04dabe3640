"""What a store gives back is what was put in, or it says that it is not."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.scheduler import PlacementPolicy, SchedulerSettings
from rose.scheduler.checks import tokens_of
from rose.scheduler.driver_events import (
    Asked,
    Begun,
    Cut,
    Drained,
    DriverStep,
    Ended,
    JobAdded,
    PauseChanged,
    RatesMeasured,
    Registered,
    TrainerPublished,
    Used,
)
from rose.scheduler.driver_trajectory import DriverTrajectory, Phase
from rose.scheduler.state import (
    DriverCounts,
    JobCounts,
    RolloutsState,
    SchedulerCheckpoint,
    UsedNumbers,
)
from rose.scheduler.store_file import FileStore
from rose.scheduler.turns import Capabilities, Sampling, TurnResult
from rose.scheduler.versions import VersionRange
from rose.scheduler.worker import (
    GrantChanged,
    Options,
    TurnEnd,
    TurnOutput,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)

HEAD = b"rose-scheduler-journal\n"
SAMPLING = Sampling(5, 0.5, (7, 8), 3, Options(0.5, fields={"stop": ["x"]}))
CAN = Capabilities(4, 1000.0, 5.0, device=3)
ENTRIES = [
    Begun(0, 1, 2, 3),
    Asked(0, 0, 0, tokens_of("prompt", (1, 2, 3)).tobytes(), SAMPLING, VersionRange(1, None, 3)),
    Ended(0, is_wanted=False),
    Registered(4, WorkerKind.BORROWED, CAN),
    TrainerPublished(3, 1),
    Used(2, 1),
    JobAdded(1, 8, 2, 0.5),
    Cut(0, 0, 3),
    RatesMeasured(4, 10.0, 2.0, 0.5),
    Drained(4),
    PauseChanged(True, True),
    TurnOutput(4, 0, 0, 2, 5, (9,), (-0.25,), (3,), TurnEnd.FAILED, "it broke"),
    TurnOutput(4, 0, 0, 2, 5, (9,), (-0.25,), (3,), None, None, (((9, -0.25),),), 3, "x", {"a": 1}),
    GrantChanged(4, 2, 1000, 250.0),
    VersionCommitted(4, 3, True, 1.5),
    WorkerLost(4, "gone"),
]
STEPS = [DriverStep(10 * place, tuple(ENTRIES[: place + 1])) for place in range(len(ENTRIES))]


def checkpoint(sequence: int) -> SchedulerCheckpoint:
    state = DriverTrajectory(
        5, 1, 2, 3, phase=Phase.SPEAKING, context=tokens_of("prompt", [1, 2]), sampling=SAMPLING
    )
    state.turns.append(TurnResult(5, 0, (1,), (-0.5,), (0,), (4, 4), is_cut=True))
    return SchedulerCheckpoint(
        sequence=sequence,
        policy=PlacementPolicy.JOINT,
        settings=SchedulerSettings(),
        core=bytes(range(256)),
        trajectories=[state],
        rest=RolloutsState(
            now_ns=17,
            workers={4: Registered(4, WorkerKind.BORROWED, CAN)},
            used=UsedNumbers(5, {7}),
            counts=DriverCounts(begun=6, jobs={2: JobCounts(finished=3)}),
        ),
    )


def written(path, steps=STEPS) -> None:
    store = FileStore(path)
    assert store.load() is None
    store.save(checkpoint(store.rotate()))
    for step in steps:
        store.append(step)
    store.close()


def loaded(path):
    store = FileStore(path)
    try:
        return store.load()
    finally:
        store.close()


def test_all_that_is_put_in_comes_back(tmp_path) -> None:
    written(tmp_path / "state")
    assert loaded(tmp_path / "state") == (checkpoint(1), STEPS)


@pytest.mark.parametrize("saves", [1, 2])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_checkpoint_that_is_gone_is_refused(tmp_path, steps, saves) -> None:
    path = tmp_path / "state"
    store = FileStore(path)
    for _ in range(saves):
        store.save(checkpoint(store.rotate()))
    for step in STEPS[:steps]:
        store.append(step)
    store.close()
    whole = path.read_bytes()
    path.unlink()
    if steps == 0 and saves == 1:  # As of a first start that was killed: nothing had happened.
        assert loaded(path) is None
        return
    for _ in range(2):
        with pytest.raises(
            CorruptData, match=r"'.*/state' is missing, but its journal '.*-\d' exists"
        ):
            loaded(path)
    path.write_bytes(whole)
    assert loaded(path) == (checkpoint(saves), STEPS[:steps])


def test_steps_of_two_journals_come_back_when_the_checkpoint_between_was_never_saved(
    tmp_path,
) -> None:
    path = tmp_path / "state"
    written(path, STEPS[:3])
    for begin in (3, 6):
        store = FileStore(path)
        store.load()
        store.rotate()
        for step in STEPS[begin : begin + 3]:
            store.append(step)
        store.close()
    assert loaded(path) == (checkpoint(1), STEPS[:9])


def test_a_checkpoint_takes_the_place_of_the_journals_before_it(tmp_path) -> None:
    path = tmp_path / "state"
    written(path)
    store = FileStore(path)
    store.load()
    sequence = store.rotate()
    store.append(STEPS[0])
    store.save(checkpoint(sequence))
    store.append(STEPS[1])
    store.close()
    assert loaded(path) == (checkpoint(2), STEPS[:2])
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "state",
        "state.journal-2",
        "state.lock",
    ]


def test_a_journal_that_is_cut_anywhere_gives_the_steps_before_and_can_go_on(tmp_path) -> None:
    short = STEPS[:2]
    written(tmp_path / "whole", short)
    checkpoint_bytes = (tmp_path / "whole").read_bytes()
    journal = (tmp_path / "whole.journal-1").read_bytes()
    lengths = []
    for cut in range(len(HEAD), len(journal)):
        path = tmp_path / f"cut-{cut}"
        path.write_bytes(checkpoint_bytes)
        path.with_name(path.name + ".journal-1").write_bytes(journal[:cut])
        store = FileStore(path)
        _, steps = store.load()
        assert steps == short[: len(steps)]
        lengths.append(len(steps))
        store.rotate()
        store.append(STEPS[-1])
        store.close()
        assert loaded(path) == (checkpoint(1), [*steps, STEPS[-1]])
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(short) - 1


@pytest.mark.parametrize("lost", ["body", "all but the length", "all"])
def test_a_last_record_of_full_length_without_its_bytes_is_left_out(tmp_path, lost) -> None:
    """A power cut can leave a file its length and not its bytes."""
    written(tmp_path / "state", STEPS[:2])
    whole = (tmp_path / "state.journal-1").stat().st_size
    written(tmp_path / "more", STEPS[:3])
    content = (tmp_path / "more.journal-1").read_bytes()
    kept = content[: whole + {"body": 20, "all but the length": 4, "all": 0}[lost]]
    (tmp_path / "state.journal-1").write_bytes(kept.ljust(len(content), b"\0"))
    store = FileStore(tmp_path / "state")
    assert store.load() == (checkpoint(1), STEPS[:2])
    assert store.rotate() == 2
    store.append(STEPS[2])
    store.close()
    assert loaded(tmp_path / "state") == (checkpoint(1), STEPS[:3])


def test_zeros_before_the_end_are_damage(tmp_path) -> None:
    path = tmp_path / "state"
    written(path, STEPS[:2])
    journal = tmp_path / "state.journal-1"
    content = journal.read_bytes()
    first = len(HEAD)
    for behind in (content[first:], b"\0" * 40 + b"\1" * 12):
        journal.write_bytes(content[:first] + b"\0" * 100 + behind)
        with pytest.raises(CorruptData, match=f"damaged at byte {first}"):
            loaded(path)
    journal.write_bytes(content + bytes(100))
    (tmp_path / "state.journal-2").write_bytes(content)
    with pytest.raises(CorruptData, match=f"damaged at byte {len(content)}"):
        loaded(path)


@given(data=st.data())
def test_a_changed_byte_is_found_or_changes_nothing_but_the_last_step(
    tmp_path_factory, data
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    written(folder / "state")
    name = data.draw(st.sampled_from(["state", "state.journal-1"]))
    changed = bytearray((folder / name).read_bytes())
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    (folder / name).write_bytes(changed)
    try:
        _, steps = loaded(folder / "state")
    except CorruptData:
        return
    assert name == "state.journal-1"
    assert steps == STEPS[:-1]


@pytest.mark.parametrize(("where", "call"), [(fcntl, "lockf"), (Path, "iterdir")])
def test_files_that_cannot_be_had_are_let_go(tmp_path, monkeypatch, where, call) -> None:
    def fail(*_args) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(where, call, fail)
        with pytest.raises(Unavailable, match="Input/output error") as caught:
            FileStore(tmp_path / "state")
    opened = {one.resolve() for one in Path("/proc/self/fd").iterdir()}
    assert tmp_path / "state.lock" not in opened
    assert caught.value.__traceback__ is not None  # It holds the store that was not made, till now.


def test_what_cannot_be_written_is_said_and_the_checkpoint_before_stays(tmp_path) -> None:
    with pytest.raises(Unavailable, match="cannot be written"):
        FileStore(tmp_path / "nowhere" / "state")
    path = tmp_path / "state"
    written(path)
    store = FileStore(path)
    store.load()
    with pytest.raises(Unavailable, match="not open"):
        store.append(STEPS[0])
    (tmp_path / "state.journal-2").mkdir()  # so that no file can be there
    with pytest.raises(Unavailable, match="cannot be written"):
        store.rotate()
    store.close()
    (tmp_path / "state.journal-2").rmdir()
    assert loaded(path) == (checkpoint(1), STEPS)


def test_files_of_something_else_are_refused_by_name(tmp_path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"something else")
    with pytest.raises(CorruptData, match="not a checkpoint"):
        loaded(path)
    path.unlink()
    written(path)
    (tmp_path / "state.journal-1").write_bytes(b"something else that is long enough to be one")
    with pytest.raises(CorruptData, match="not a journal"):
        loaded(path)


def test_a_checkpoint_whose_journal_is_gone_or_cut_in_its_head_is_refused(tmp_path) -> None:
    path = tmp_path / "state"
    journal = tmp_path / "state.journal-1"
    written(path)
    for cut in range(len(HEAD)):
        os.truncate(journal, cut)
        with pytest.raises(CorruptData, match="not a journal"):
            loaded(path)
        journal.write_bytes(HEAD)
        assert loaded(path) == (checkpoint(1), [])
    journal.unlink()
    with pytest.raises(CorruptData, match="is missing"):
        loaded(path)


class FullDisk:
    """A file on a disk that takes so many bytes more."""

    def __init__(self, file, left: int, *, is_silent: bool) -> None:
        self.file, self.left, self.is_silent = file, left, is_silent

    def write(self, data: bytes) -> int:
        if not self.is_silent:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data[: self.left])

    def fileno(self) -> int:
        return self.file.fileno()

    def close(self) -> None:
        self.file.close()


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_journal_that_the_disk_does_not_take_is_not_there_and_the_one_before_goes_on(
    tmp_path, monkeypatch, is_silent
) -> None:
    path = tmp_path / "state"
    store = FileStore(path)
    store.save(checkpoint(store.rotate()))
    opens = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "open", lambda *args, **how: FullDisk(opens(*args, **how), 3, is_silent=is_silent)
        )
        with pytest.raises(Unavailable, match="cannot be written: No space"):
            store.rotate()
    assert not (tmp_path / "state.journal-2").exists()
    store.append(STEPS[0])
    store._journal = FullDisk(store._journal, 20, is_silent=True)
    with pytest.raises(Unavailable, match="is full"):
        store.append(STEPS[1])
    store.close()
    assert loaded(path) == (checkpoint(1), STEPS[:1])


@pytest.mark.parametrize(
    "behind",
    [b"", HEAD[:5], HEAD, bytes(len(HEAD)), HEAD[:5].ljust(99, b"\0")],
    ids=["nothing", "part", "head", "zeros", "part and zeros"],
)
def test_a_last_journal_without_a_step_does_not_make_damage_of_a_cut(tmp_path, behind) -> None:
    path = tmp_path / "state"
    written(path, STEPS[:2])
    journal = tmp_path / "state.journal-1"
    os.truncate(journal, journal.stat().st_size - 1)
    (tmp_path / "state.journal-2").write_bytes(behind)
    store = FileStore(path)
    assert store.load() == (checkpoint(1), STEPS[:1])
    assert store.rotate() == 2
    store.append(STEPS[2])
    store.close()
    assert loaded(path) == (checkpoint(1), [STEPS[0], STEPS[2]])


def test_an_older_checkpoint_does_not_take_the_place_of_a_newer_one(tmp_path) -> None:
    path = tmp_path / "state"
    store = FileStore(path)
    first, second = store.rotate(), store.rotate()
    store.save(checkpoint(second))
    with pytest.raises(
        InvalidArgument, match=r"cannot save checkpoint 1 to .*: checkpoint 2 is newer"
    ):
        store.save(checkpoint(first))
    store.close()
    with pytest.raises(InvalidArgument, match=r"cannot save checkpoint 2 to .*: it is closed"):
        store.save(checkpoint(second))
    assert loaded(path) == (checkpoint(2), [])
    store = FileStore(path)
    store.load()
    with pytest.raises(InvalidArgument, match="checkpoint 2 is newer"):
        store.save(checkpoint(1))
    store.close()


def test_a_checkpoint_whose_last_sync_failed_is_said_and_no_step_is_lost(
    tmp_path, monkeypatch
) -> None:
    path = tmp_path / "state"
    syncs, folders = os.fsync, []

    def fail_the_second_time(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            folders.append(descriptor)
            if len(folders) == 2:
                raise OSError(errno.EIO, "Input/output error")
        syncs(descriptor)

    written(path, STEPS[:2])
    before = path.read_bytes()
    store = FileStore(path)
    store.load()
    second = store.rotate()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_the_second_time)
        with pytest.raises(Unavailable, match="cannot be written: Input/output"):
            store.save(checkpoint(second))
    store.append(STEPS[2])
    after = path.read_bytes()
    path.write_bytes(before)  # as a power cut may leave it
    for journal in (1, 2):
        assert (tmp_path / f"state.journal-{journal}").exists()
    store.close()
    assert loaded(path) == (checkpoint(1), STEPS[:3])
    path.write_bytes(after)
    store = FileStore(path)
    assert store.load() == (checkpoint(2), STEPS[2:3])
    store.save(checkpoint(store.rotate()))
    store.close()
    assert loaded(path) == (checkpoint(3), [])


def journals(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if "journal" in one.name)


def test_a_journal_that_cannot_be_removed_is_no_failure_and_goes_with_the_next_checkpoint(
    tmp_path, monkeypatch
) -> None:
    path = tmp_path / "state"
    store = FileStore(path)
    lists, unlink = Path.iterdir, Path.unlink

    def fail(_folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def fail_for_the_first(self: Path, missing_ok: bool = False) -> None:
        if self.name == "state.journal-1":
            raise OSError(errno.EPERM, "Operation not permitted")
        unlink(self, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", fail)
        for _ in range(2):
            store.save(checkpoint(store.rotate()))
    assert journals(tmp_path) == ["state.journal-1", "state.journal-2"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail_for_the_first)
        patch.setattr(Path, "iterdir", lambda folder: sorted(lists(folder)))
        store.save(checkpoint(store.rotate()))
    assert journals(tmp_path) == ["state.journal-1", "state.journal-3"]
    store.save(checkpoint(store.rotate()))
    assert journals(tmp_path) == ["state.journal-4"]
    store.close()


def test_journals_that_a_killed_life_left_are_removed_by_the_next_that_loads(
    tmp_path, monkeypatch
) -> None:
    path = tmp_path / "state"
    written(path)
    store = FileStore(path)
    store.load()
    for _ in range(10):
        store.save(checkpoint(store.rotate()))
    store.close()
    others = ["state.journal-0", "state.journal-07", "state.journal-x", "other.journal-7"]
    for name in ("state.journal-7", "state.journal-10", *others):
        (tmp_path / name).write_bytes(HEAD)
    order: list[str] = []
    syncs, unlink = os.fsync, Path.unlink

    def sync(descriptor: int) -> None:
        order.append("sync")
        syncs(descriptor)

    def remove(self: Path, missing_ok: bool = False) -> None:
        order.append("unlink")
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "unlink", remove)
    assert loaded(path) == (checkpoint(11), [])
    assert journals(tmp_path) == sorted(["state.journal-11", *others])
    # Who was killed may not have come to that, and the checkpoint before may be back.
    assert order == ["sync", "unlink", "unlink"]


def test_journals_of_a_checkpoint_that_is_damaged_are_kept(tmp_path) -> None:
    path = tmp_path / "state"
    written(path)
    store = FileStore(path)
    store.load()
    store.save(checkpoint(store.rotate()))
    store.close()
    (tmp_path / "state.journal-1").write_bytes(HEAD)
    (tmp_path / "state.journal-2").write_bytes(b"something else that is long enough to be one")
    with pytest.raises(CorruptData):
        loaded(path)
    assert journals(tmp_path) == ["state.journal-1", "state.journal-2"]


def test_what_a_killed_life_had_not_finished_is_swept_by_the_next_that_owns_the_files(
    tmp_path,
) -> None:
    path = tmp_path / "state"
    store = FileStore(path)
    half = tmp_path / ".state.0123456789abcdef"
    others = [tmp_path / name for name in (".other.0123456789abcdef", ".state.txt", "state.7")]
    for file in (half, *others):
        file.write_bytes(b"half")
    with pytest.raises(InvalidArgument, match="another scheduler writes"):
        FileStore(path)
    assert half.exists()
    store.close()
    FileStore(path).close()
    assert not half.exists()
    assert all(file.exists() for file in others)


def test_names_are_on_the_disk_before_anything_depends_on_them(tmp_path, monkeypatch) -> None:
    synced: list[str] = []
    syncs = os.fsync

    def sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name.rpartition(".")[0])
        syncs(descriptor)

    folder = tmp_path / "folder.d"
    folder.mkdir()
    monkeypatch.setattr(os, "fsync", sync)
    store = FileStore(folder / "state", is_synced=True)
    sequence = store.rotate()
    assert synced == ["state", "folder"]  # the journal and its name
    synced.clear()
    store.save(checkpoint(sequence))
    assert synced == ["state", "folder", ".state", "folder"]  # the checkpoint behind its journal
    store.close()
