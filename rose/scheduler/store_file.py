"""Where a scheduler writes down what it must not forget: a checkpoint in a file, and a journal.

A checkpoint is the whole state, and is whole or not there; a journal beside it holds each step
since then. Whatever a step does is done after it was written, so whoever restores the checkpoint
and takes the journal's steps again knows at least what anybody outside knows.

docs/protocol.md has the layout. Nothing in the files is executed when they are read. `NAME.lock` is
held by the one scheduler that writes them.

What a crash can leave at the end of the last journal was never acted on, and is left out: a record
that is cut off, one of full length whose body is not as it was written, and zeros where one should
begin, as a file may have its length before its bytes. A last body that was changed later looks the
same, and its step is left out too. A journal at the end without a step is begun again; anything
else that is not as it was written, or is gone, is refused.
"""

import errno
import hashlib
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.scheduler.course import Course
from rose.scheduler.events import Consumed, JobJoined, VersionPublished
from rose.scheduler.front_events import Asked, Begun, Ended, Registered, Step
from rose.scheduler.state import Checkpoint
from rose.scheduler.wire import EVENTS
from rose.whole_file import lock, sweep, sync_file, sync_folder, write_whole

# The layout of a body may only change together with this.
FORMAT: Final = 4
_CHECKPOINT: Final = b"rose-scheduler-checkpoint\n"
_JOURNAL: Final = b"rose-scheduler-journal\n"
_LENGTH: Final = struct.Struct("<Q")
_SIZE: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<III")
_SHA_BYTES: Final = 32

_WORDS: Final[dict[str, type]] = {
    "begun": Begun,
    "asked": Asked,
    "ended": Ended,
    "registered": Registered,
    "published": VersionPublished,
    "consumed": Consumed,
    "job": JobJoined,
    **EVENTS,
}
_WORD_OF: Final = {kind: word for word, kind in _WORDS.items()}


class _Step(msgspec.Struct, array_like=True):
    now_ns: int
    entries: list[tuple[str, msgspec.Raw]]


class _Head(msgspec.Struct, array_like=True):
    format: int
    body: msgspec.Raw  # a Checkpoint without trajectories
    sizes: list[int] = []  # of the trajectories behind it, in bytes


class FileStore:
    """Keeps the state of one scheduler in `path` and files beside it.

    Whatever reads or writes raises Unavailable where the disk does not do it.

    Args:
        path: of the checkpoint; its folder exists.
        is_synced: steps outlive a power cut too, and not only this process: each waits for the
            disk. Checkpoints always do.

    Raises:
        InvalidArgument: another scheduler writes there.
        Unavailable: the folder cannot be written.
    """

    def __init__(self, path: Path, *, is_synced: bool = False) -> None:
        self._path = path
        self._is_synced = is_synced
        self._sequence = 0
        self._journal: BinaryIO | None = None
        self._encoder = msgspec.msgpack.Encoder()
        # Held by whoever writes a checkpoint. Guards what follows; and `close` waits for it, as
        # a thread that still writes must not meet the scheduler that comes next.
        self._saving = threading.Lock()
        self._saved = 0  # number of the newest checkpoint
        self._is_closed = False
        try:
            with _disk(path, "written"):
                self._lock = lock(path.with_name(path.name + ".lock"))
        except BlockingIOError as error:
            raise InvalidArgument(
                f"another scheduler writes '{path}': end it, or name another file"
            ) from error
        try:
            with _disk(path, "written"):
                sweep(path)
        except Unavailable:
            self._lock.close()
            raise

    # ---- reading --------------------------------------------------------------------------------

    def load(self) -> tuple[Checkpoint, list[Step]] | None:
        """Return the checkpoint and the steps since then; None if nothing was ever written here.

        Journals before it are removed: a life that was killed may have left some.

        Raises:
            CorruptData: a file is not what was written, or is gone.
        """
        with _disk(self._path, "read"):
            if not self._path.exists():
                self._check_never_saved()
                return None
            checkpoint = self._checkpoint_of(self._path.read_bytes())
            self._saved = checkpoint.sequence
            journals = self._journals_from(checkpoint.sequence)
            steps = self._steps_of_all(journals)
        self._sequence = checkpoint.sequence + len(journals) - 1
        with suppress(OSError):  # The next checkpoint tries again.
            sync_folder(self._path.parent)  # Who saved it may not have come to that.
            self._forget_journals()
        return checkpoint, steps

    def _check_never_saved(self) -> None:
        """Raise when a journal shows that there was a checkpoint.

        The first one without a step does not: it is written before the first checkpoint.
        """
        for number, journal in sorted(self._journals_there().items()):
            if number > 1 or not _JOURNAL.startswith(journal.read_bytes().rstrip(b"\0")):
                raise CorruptData(
                    f"the checkpoint '{self._path}' is gone, and its journal '{journal}' is there: "
                    f"bring the checkpoint back, or remove the journals to begin anew"
                )

    def _journals_there(self) -> dict[int, Path]:
        """Return all journals by their numbers."""
        pattern = re.compile(rf"{re.escape(self._path.name)}\.journal-([1-9][0-9]*)")
        found = ((pattern.fullmatch(one.name), one) for one in self._path.parent.iterdir())
        return {int(name[1]): one for name, one in found if name}

    def _journals_from(self, sequence: int) -> list[tuple[Path, bytes]]:
        """Return what the journals hold; those at the end that hold no step are begun again.

        The first one was there before its checkpoint was, so it must be, and begin as it should.
        """
        journals: list[tuple[Path, bytes]] = []
        while (journal := self._journal_path(sequence + len(journals))).exists():
            journals.append((journal, journal.read_bytes()))
        if not journals:
            raise CorruptData(f"the journal '{journal}' of the checkpoint '{self._path}' is gone")
        while len(journals) > 1 and _JOURNAL.startswith(journals[-1][1].rstrip(b"\0")):
            journals.pop()
        return journals

    def _steps_of_all(self, journals: list[tuple[Path, bytes]]) -> list[Step]:
        steps: list[Step] = []
        for journal, data in journals:
            found, whole = _steps_of(data, journal)
            if whole < len(data):
                if journal != journals[-1][0]:
                    raise CorruptData(f"the journal '{journal}' is damaged at byte {whole}")
                os.truncate(journal, whole)  # It will not be the last one.
            steps += found
        return steps

    def _checkpoint_of(self, data: bytes) -> Checkpoint:
        start = len(_CHECKPOINT) + _LENGTH.size
        if not data.startswith(_CHECKPOINT) or len(data) < start:
            raise CorruptData(f"'{self._path}' is not a checkpoint of a scheduler")
        (length,) = _LENGTH.unpack(data[len(_CHECKPOINT) : start])
        body, sha = data[start:-_SHA_BYTES], data[-_SHA_BYTES:]
        if hashlib.sha256(body).digest() != sha:
            raise CorruptData(f"the checkpoint '{self._path}' is damaged")
        try:
            head = msgspec.msgpack.decode(body[:length], type=_Head)
            if head.format != FORMAT:
                raise CorruptData(
                    f"'{self._path}' has format {head.format}, this rose reads {FORMAT}"
                )
            checkpoint = msgspec.msgpack.decode(head.body, type=Checkpoint)
            ends = list(accumulate(head.sizes, initial=length))
            courses = [
                msgspec.msgpack.decode(body[at:end], type=Course) for at, end in pairwise(ends)
            ]
            return replace(checkpoint, trajectories=courses)
        except msgspec.DecodeError as error:
            raise CorruptData(f"the checkpoint '{self._path}' cannot be read: {error}") from error

    # ---- writing --------------------------------------------------------------------------------

    def append(self, step: Step) -> None:
        """Write a step down."""
        entries = [
            (_WORD_OF[type(entry)], msgspec.Raw(self._encoder.encode(entry)))
            for entry in step.entries
        ]
        body = self._encoder.encode(_Step(step.now_ns, entries))
        size = _SIZE.pack(len(body))
        self._write(_RECORD.pack(len(body), zlib.crc32(size), zlib.crc32(body)) + body)

    def _write(self, data: bytes) -> None:
        if self._journal is None:
            raise Unavailable(f"the journal of '{self._path}' is not open")
        with _disk(self._path, "written"):
            written = self._journal.write(data)
            if self._is_synced:
                os.fsync(self._journal.fileno())
        if written != len(data):
            raise Unavailable(f"the disk of '{self._path}' is full")

    def rotate(self) -> int:
        """Begin another journal, and return its number; the one before goes on if that fails."""
        sequence = self._sequence + 1
        path = self._journal_path(sequence)
        with _disk(self._path, "written"):
            journal = path.open("wb", buffering=0)
            try:
                self._begin(journal)
            except OSError:
                journal.close()
                with suppress(OSError):  # One without steps says nothing, if it must stay.
                    path.unlink()
                raise
        if self._journal is not None:
            self._journal.close()
        self._journal, self._sequence = journal, sequence
        return sequence

    def _begin(self, journal: BinaryIO) -> None:
        if journal.write(_JOURNAL) != len(_JOURNAL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._is_synced:
            os.fsync(journal.fileno())
            # Or the journal's steps outlive a power cut, and its name does not.
            sync_folder(self._path.parent)

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint, and forget the journals before it; any thread.

        It outlives a power cut when this returns.

        Raises:
            InvalidArgument: a newer one is kept, or the store is closed.
            Unavailable: the disk does not take it. The checkpoint before is as it was; or, where
                only the last sync failed, this one is there, and a power cut may bring the one
                before back. All journals are there for either.
        """
        with self._saving:
            if self._is_closed or checkpoint.sequence < self._saved:
                raise InvalidArgument(
                    f"the checkpoint {checkpoint.sequence} of '{self._path}' comes too late: "
                    f"{'the store is closed' if self._is_closed else f'{self._saved} is kept'}"
                )
            self._save(checkpoint)

    def _save(self, checkpoint: Checkpoint) -> None:
        pieces = _pieces_of(checkpoint)
        sha = hashlib.sha256()
        for piece in pieces:
            sha.update(piece)
        start = _CHECKPOINT + _LENGTH.pack(len(pieces[0]))
        with _disk(self._path, "written"):
            # A checkpoint without its journal is refused: the journal is on the disk before it.
            sync_file(self._journal_path(checkpoint.sequence))
            sync_folder(self._path.parent)
            write_whole(self._path, start, *pieces, sha.digest())
            sync_folder(self._path.parent)  # The journals before go when it is sure to stay.
        self._saved = checkpoint.sequence
        with suppress(OSError):
            self._forget_journals()

    def _forget_journals(self) -> None:
        """Remove the journals before the newest checkpoint; one that stays is tried next time."""
        for number, journal in self._journals_there().items():
            if number < self._saved:
                with suppress(OSError):
                    journal.unlink(missing_ok=True)

    def close(self) -> None:
        """Write nothing more, and let others write; a checkpoint on its way is waited for."""
        with self._saving:
            self._is_closed = True
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._lock.close()

    def _journal_path(self, sequence: int) -> Path:
        return self._path.with_name(f"{self._path.name}.journal-{sequence}")


def _pieces_of(checkpoint: Checkpoint) -> list[bytes]:
    """Return the head and the trajectories.

    Each is encoded by itself: an encoder lets no other thread run until it is done.
    """
    encode = msgspec.msgpack.encode
    courses = [encode(one) for one in checkpoint.trajectories]
    body = msgspec.Raw(encode(replace(checkpoint, trajectories=())))
    return [encode(_Head(FORMAT, body, [len(one) for one in courses])), *courses]


def _steps_of(data: bytes, journal: Path) -> tuple[list[Step], int]:
    """Return the steps in a journal, and how many of its bytes are whole.

    Raises:
        CorruptData: what was written was changed; what was cut off at the end was not.
    """
    if not data.startswith(_JOURNAL):
        raise CorruptData(f"'{journal}' is not a journal of a scheduler")
    steps: list[Step] = []
    at = len(_JOURNAL)
    while at + _RECORD.size <= len(data):
        length, length_crc, crc = _RECORD.unpack_from(data, at)
        if zlib.crc32(data[at : at + _SIZE.size]) != length_crc:
            if len(data[at:].rstrip(b"\0")) < _RECORD.size:
                break  # Its length came to the disk, and its bytes did not.
            raise CorruptData(f"the journal '{journal}' is damaged at byte {at}")
        end = at + _RECORD.size + length
        body = data[at + _RECORD.size : end]
        if zlib.crc32(body) != crc:
            if end >= len(data):
                break  # Cut off.
            raise CorruptData(f"the journal '{journal}' is damaged at byte {at}")
        steps.append(_step_of(body, journal, at))
        at = end
    return steps, at


def _step_of(body: bytes, journal: Path, at: int) -> Step:
    try:
        step = msgspec.msgpack.decode(body, type=_Step)
        for word, _ in step.entries:
            if word not in _WORDS:
                raise CorruptData(
                    f"the journal '{journal}' has an unknown entry '{word[:40]}' at byte {at}"
                )
        entries: Iterator[Any] = (
            msgspec.msgpack.decode(body, type=_WORDS[word]) for word, body in step.entries
        )
        return Step(step.now_ns, tuple(entries))
    except msgspec.DecodeError as error:
        raise CorruptData(
            f"the journal '{journal}' cannot be read at byte {at}: {error}"
        ) from error


@contextmanager
def _disk(path: Path, what: str) -> Iterator[None]:
    """Say in one sentence which file could not be read or written; a lock that is held passes."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise Unavailable(f"'{path}' cannot be {what}: {error.strerror}") from error
