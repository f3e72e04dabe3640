"""The scheduler's store: a checkpoint in a file, and journals.

A checkpoint is the whole state, and replaces its predecessor atomically. A journal beside it holds
each step since then. The effects of a step follow its journal entry, so the checkpoint and the
journal together contain everything that callers and workers have seen.

docs/protocol.md has the layout. Reading a file never executes any of its content. Only one
scheduler at a time may write the files; it holds `NAME.lock`.

A crash can leave an incomplete step at the end of the last journal. Such a step had no effects, and
is ignored. It looks like a truncated record, a record with a damaged body, or zeros where a
record should begin, because a file's length may reach the disk before its content. If the body of
the last step is damaged later, this looks the same, and the step is ignored too. If the last
journal holds no step, it is started anew. Any other damage or missing file is an error.
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
from rose.scheduler.checks import Tokens, no_tokens
from rose.scheduler.driver_events import DriverStep
from rose.scheduler.driver_trajectory import DriverTrajectory
from rose.scheduler.state import SchedulerCheckpoint
from rose.whole_file import lock, sweep, sync_file, sync_folder, write_whole

# The layout of a body may change only together with this number.
FORMAT: Final = 6
_CHECKPOINT: Final = b"rose-scheduler-checkpoint\n"
_JOURNAL: Final = b"rose-scheduler-journal\n"
_LENGTH: Final = struct.Struct("<Q")
_SIZE: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<III")
_SHA_BYTES: Final = 32


class _Head(msgspec.Struct, array_like=True):
    format: int
    body: msgspec.Raw  # a SchedulerCheckpoint without trajectories
    sizes: list[int] = []  # bytes of each trajectory after the head


class FileStore:
    """Stores the state of one scheduler in `path` and files beside it.

    Methods that read or write raise Unavailable if the disk fails.

    Args:
        path: checkpoint file; its folder must exist.
        is_synced: whether each step waits until it is on disk, so that it survives a power cut and
            not only the end of this process. Checkpoints always wait.

    Raises:
        InvalidArgument: another scheduler uses the files.
        Unavailable: the folder cannot be written.
    """

    def __init__(self, path: Path, *, is_synced: bool = False) -> None:
        self._path = path
        self._is_synced = is_synced
        self._sequence = 0
        self._journal: BinaryIO | None = None
        self._encoder = msgspec.msgpack.Encoder()
        # Held while writing a checkpoint; guards the fields below. `close` waits for it, so that no
        # thread of this store still writes when the next scheduler opens the files.
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

    def load(self) -> tuple[SchedulerCheckpoint, list[DriverStep]] | None:
        """Return the checkpoint and the steps since then; None if nothing was ever written.

        Older journals, left by a killed process, are removed.

        Raises:
            CorruptData: a file is damaged or missing.
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
            sync_folder(self._path.parent)  # The writer may have been killed before its own sync.
            self._forget_journals()
        return checkpoint, steps

    def _check_never_saved(self) -> None:
        """Raise if a journal proves that a checkpoint existed.

        A first journal without a step proves nothing: it is written before the first checkpoint.
        """
        for number, journal in sorted(self._journals_there().items()):
            if number > 1 or not _JOURNAL.startswith(journal.read_bytes().rstrip(b"\0")):
                raise CorruptData(
                    f"the checkpoint '{self._path}' is missing, but its journal '{journal}' "
                    f"exists: restore the checkpoint, or remove the journals to start anew"
                )

    def _journals_there(self) -> dict[int, Path]:
        """Return the paths of all journals on disk, by number."""
        pattern = re.compile(rf"{re.escape(self._path.name)}\.journal-([1-9][0-9]*)")
        found = ((pattern.fullmatch(one.name), one) for one in self._path.parent.iterdir())
        return {int(name[1]): one for name, one in found if name}

    def _journals_from(self, sequence: int) -> list[tuple[Path, bytes]]:
        """Return path and content of the journals from `sequence` on.

        Journals at the end that hold no step are left out.

        The first journal must exist and be valid, since it was written before its checkpoint.
        """
        journals: list[tuple[Path, bytes]] = []
        while (journal := self._journal_path(sequence + len(journals))).exists():
            journals.append((journal, journal.read_bytes()))
        if not journals:
            raise CorruptData(
                f"the journal '{journal}' of the checkpoint '{self._path}' is missing"
            )
        while len(journals) > 1 and _JOURNAL.startswith(journals[-1][1].rstrip(b"\0")):
            journals.pop()
        return journals

    def _steps_of_all(self, journals: list[tuple[Path, bytes]]) -> list[DriverStep]:
        steps: list[DriverStep] = []
        for journal, data in journals:
            found, whole = _steps_of(data, journal)
            if whole < len(data):
                if journal != journals[-1][0]:
                    raise CorruptData(f"the journal '{journal}' is damaged at byte {whole}")
                os.truncate(journal, whole)  # A journal must be valid once another one follows.
            steps += found
        return steps

    def _checkpoint_of(self, data: bytes) -> SchedulerCheckpoint:
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
                    f"'{self._path}' has format {head.format}, but this rose reads format {FORMAT}"
                )
            checkpoint = msgspec.msgpack.decode(head.body, type=SchedulerCheckpoint)
            ends = list(accumulate(head.sizes, initial=length))
            states = [
                msgspec.msgpack.decode(body[at:end], type=DriverTrajectory, dec_hook=_tokens)
                for at, end in pairwise(ends)
            ]
            return replace(checkpoint, trajectories=states)
        except msgspec.DecodeError as error:
            raise CorruptData(f"the checkpoint '{self._path}' cannot be read: {error}") from error

    # ---- writing --------------------------------------------------------------------------------

    def append(self, step: DriverStep) -> None:
        """Write a step to the journal."""
        body = self._encoder.encode(step)
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
        """Start the next journal, and return its number; on failure the current one continues."""
        sequence = self._sequence + 1
        path = self._journal_path(sequence)
        with _disk(self._path, "written"):
            path.unlink(missing_ok=True)
            journal = path.open("xb", buffering=0)  # Neither follows a link nor waits for a pipe.
            try:
                self._begin(journal)
            except OSError:
                journal.close()
                with suppress(OSError):  # A journal without steps does no harm.
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
            # Otherwise the journal's steps would survive a power cut, but not its name.
            sync_folder(self._path.parent)

    def save(self, checkpoint: SchedulerCheckpoint) -> None:
        """Write a checkpoint, and remove the journals before it; any thread may call.

        The checkpoint survives a power cut once this returns.

        Raises:
            InvalidArgument: a newer checkpoint is stored, or the store is closed.
            Unavailable: the disk failed. The old checkpoint is unchanged, unless only the last
                sync failed. In that case the file holds the new checkpoint, but a power cut may
                bring back the old one. The journals of both are kept.
        """
        with self._saving:
            if self._is_closed or checkpoint.sequence < self._saved:
                raise InvalidArgument(
                    f"cannot save checkpoint {checkpoint.sequence} to '{self._path}': "
                    f"{'it is closed' if self._is_closed else f'checkpoint {self._saved} is newer'}"
                )
            self._save(checkpoint)

    def _save(self, checkpoint: SchedulerCheckpoint) -> None:
        pieces = _pieces_of(checkpoint)
        sha = hashlib.sha256()
        for piece in pieces:
            sha.update(piece)
        start = _CHECKPOINT + _LENGTH.pack(len(pieces[0]))
        with _disk(self._path, "written"):
            # A checkpoint without its journal is an error: the journal must reach the disk first.
            sync_file(self._journal_path(checkpoint.sequence))
            sync_folder(self._path.parent)
            write_whole(self._path, start, *pieces, sha.digest())
            sync_folder(self._path.parent)  # Older journals may be removed only after this.
        self._saved = checkpoint.sequence
        with suppress(OSError):
            self._forget_journals()

    def _forget_journals(self) -> None:
        """Remove journals before the newest checkpoint; on failure, the next call retries."""
        for number, journal in self._journals_there().items():
            if number < self._saved:
                with suppress(OSError):
                    journal.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop writing, and release the lock; waits for a checkpoint in progress."""
        with self._saving:
            self._is_closed = True
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._lock.close()

    def _journal_path(self, sequence: int) -> Path:
        return self._path.with_name(f"{self._path.name}.journal-{sequence}")


def _bytes(tokens: Any) -> bytes:
    """Encode a context: msgspec has no arrays."""
    encoded: bytes = tokens.tobytes()
    return encoded


def _tokens(_kind: type, body: Any) -> Tokens:
    """Decode a context."""
    try:
        tokens = no_tokens()
        tokens.frombytes(body)
    except (TypeError, ValueError) as error:
        raise msgspec.ValidationError(f"a context is damaged: {error}") from error
    return tokens


def _pieces_of(checkpoint: SchedulerCheckpoint) -> list[bytes]:
    """Return the head and the trajectories, encoded one by one.

    An encoder holds the GIL during a call, so each call must be short.
    """
    encode = msgspec.msgpack.Encoder(enc_hook=_bytes).encode
    states = [encode(one) for one in checkpoint.trajectories]
    body = msgspec.Raw(encode(replace(checkpoint, trajectories=())))
    return [encode(_Head(FORMAT, body, [len(one) for one in states])), *states]


def _steps_of(data: bytes, journal: Path) -> tuple[list[DriverStep], int]:
    """Return the steps of a journal, and the number of its valid bytes.

    Raises:
        CorruptData: the journal is damaged, and not only by an incomplete step at its end.
    """
    if not data.startswith(_JOURNAL):
        raise CorruptData(f"'{journal}' is not a journal of a scheduler")
    steps: list[DriverStep] = []
    at = len(_JOURNAL)
    while at + _RECORD.size <= len(data):
        length, length_crc, crc = _RECORD.unpack_from(data, at)
        if zlib.crc32(data[at : at + _SIZE.size]) != length_crc:
            if len(data[at:].rstrip(b"\0")) < _RECORD.size:
                break  # The file's length reached the disk, but not its content.
            raise CorruptData(f"the journal '{journal}' is damaged at byte {at}")
        end = at + _RECORD.size + length
        body = data[at + _RECORD.size : end]
        if zlib.crc32(body) != crc:
            if end >= len(data):
                break  # An incomplete step at the end.
            raise CorruptData(f"the journal '{journal}' is damaged at byte {at}")
        steps.append(_step_of(body, journal, at))
        at = end
    return steps, at


def _step_of(body: bytes, journal: Path, at: int) -> DriverStep:
    try:
        return msgspec.msgpack.decode(body, type=DriverStep)
    except msgspec.DecodeError as error:
        raise CorruptData(
            f"the journal '{journal}' cannot be read at byte {at}: {error}"
        ) from error


@contextmanager
def _disk(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError, except that of a held lock, into Unavailable with the file's name."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise Unavailable(f"'{path}' cannot be {what}: {error.strerror}") from error
