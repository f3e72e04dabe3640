"""A connection between a device and a tenant, for whole messages with file descriptors."""

import os
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from rose.closing import Closing
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.executor.messages import (
    MESSAGE_BYTES_MAX,
    Answer,
    Question,
    decode,
    encode,
)
from rose.memory.mapped import DESCRIPTORS_MAX

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_PATH_BYTES_MAX: Final = 107  # size of sun_path without the terminating zero


class Channel(Closing):
    """Owns one end of a Unix socket with message boundaries. For one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        """Own `end`, a SOCK_SEQPACKET socket."""
        self._end = end

    @classmethod
    def connect(cls, path: str | Path, *, timeout_s: float) -> "Channel":
        """Connect to the device that listens at `path`.

        Raises:
            Unavailable: no device listens at `path`.
            InvalidArgument: the path is too long for a socket.
        """
        name = check_path(path)
        with ExitStack() as undo:
            try:
                end = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                end.settimeout(timeout_s)
                end.connect(name)
            except OSError as error:
                why = error.strerror or "it took too long"
                raise Unavailable(f"cannot connect to a device at {path}: {why}") from error
            made = cls(end)
            pid, _ = made.peer()
            if _has_ended(pid):
                raise Unavailable(
                    f"no device listens at {path} any more: process {pid} has ended, and a process "
                    "that it forked keeps the socket open"
                )
            undo.pop_all()
        return made

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._end.fileno()

    def peer(self) -> tuple[int, int]:
        """Return process id and user id of the other end, from the kernel."""
        option = self._end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(option)
        return pid, uid

    def send(self, message: Question | Answer, descriptors: Sequence[int] = ()) -> None:
        """Send a message with copies of `descriptors`; the caller still owns the originals.

        Raises:
            Unavailable: the other end is closed, or does not read.
        """
        try:
            socket.send_fds(self._end, [encode(message)], list(descriptors))
        except OSError as error:
            raise Unavailable("the other end of the connection is gone") from error

    def receive(self, *, timeout_s: float | None) -> tuple[Question | Answer, list[int]]:
        """Return the next message and its descriptors; the caller must close the descriptors.

        Raises:
            DeadlineExceeded: no message arrived in time.
            Unavailable: the other end is closed.
            CorruptData: the bytes are not a valid message.
        """
        self._end.settimeout(timeout_s)
        try:
            payload, descriptors, flags, _ = socket.recv_fds(
                self._end, MESSAGE_BYTES_MAX, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError as error:
            raise DeadlineExceeded("the other end of the connection does not answer") from error
        except OSError as error:
            raise Unavailable("the other end of the connection is gone") from error
        try:
            return _checked(payload, flags), descriptors
        except (CorruptData, Unavailable):
            close_all(descriptors)
            raise

    def close(self) -> None:
        """Disconnect. A thread that waits at either end wakes up."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def _has_ended(pid: int) -> bool:
    """Return True if no process has this id. An id of 0 is in another namespace."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(0))
    finally:
        os.close(descriptor)


def _checked(payload: bytes, flags: int) -> Question | Answer:
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise CorruptData(
            f"a message must have at most {MESSAGE_BYTES_MAX} bytes and {DESCRIPTORS_MAX} "
            f"descriptors, got more"
        )
    if not payload:
        raise Unavailable("the other end closed the connection")
    return decode(payload)


def close_all(descriptors: Sequence[int]) -> None:
    """Close unused descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def check_path(path: str | Path) -> str:
    """Return `path` if it can name a socket.

    Raises:
        InvalidArgument: the path is too long, is empty, or has a zero byte.
    """
    if not str(path) or "\0" in str(path):
        raise InvalidArgument(
            f"the path of a socket must not be empty or have a zero byte, got {str(path)!r}"
        )
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise InvalidArgument(
            f"the path of a socket must have at most {_PATH_BYTES_MAX} bytes, got '{path}'"
        )
    return str(path)
