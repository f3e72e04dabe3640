"""Let borrowers in other processes attach to a device."""

import errno
import os
import select
import selectors
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from rose._core import Process
from rose.closing import Once
from rose.errors import DeadlineExceeded, RetryLater, RoseError, Unavailable
from rose.events import Refusal
from rose.executor.channel import Channel, check_path, close_all
from rose.executor.messages import (
    FORMAT,
    AskGrow,
    AskLedger,
    AskReason,
    Granted,
    Hello,
    Leave,
    Refused,
    Rejected,
    SetLimit,
    Welcome,
)
from rose.executor.tenancy import Tenancy
from rose.thread import Thread
from rose.whole_file import lock

# Timeout of `receive`, normally never reached: a readable socket holds a whole message.
_PATIENCE_S: Final = 2.0
# Largest number of connections without a first message. One more closes the oldest of them.
_SILENT_MAX: Final = 64
# Longest wait between killing a process and the kernel's report of its end.
_PARTING_MS: Final = 1000.0
_BREATH_MS: Final = 100.0
_NAME_BYTES_MAX: Final = 64

Admit = Callable[[Hello, Process], Tenancy]
Greet = Callable[[Tenancy], AbstractContextManager[tuple[Welcome, list[int]]]]


def _listen(path: Path) -> tuple[socket.socket, BinaryIO]:
    """Listen at `path`, and take the lock file beside it. Replaces a dead process's socket."""
    with ExitStack() as undo:
        server = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        locked = undo.enter_context(lock(path.with_name(path.name + ".lock")))
        if _is_abandoned(path, locked.read(_NAME_BYTES_MAX)):
            path.unlink()
        server.bind(str(path))
        # No process can connect before `listen`, so the mode is set in time.
        path.chmod(0o600)
        locked.seek(0)
        locked.truncate()
        locked.write(_own_socket(path) or b"")
        locked.flush()
        server.listen()
        undo.pop_all()
    return server, locked


def _is_abandoned(path: Path, made: bytes) -> bool:
    """Return True if `path` is a socket of this user, not a link, and no process serves it.

    Args:
        path: path of the socket, whose lock this process has.
        made: content of the lock file, the socket that the previous owner of the lock made. That
            owner has ended, even if its forked child still has the socket open.
    """
    there = _own_socket(path)
    if there is None or there == made:
        return there is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        # Connecting to a regular file is refused too, so the type comes first.
        return caller.connect_ex(str(path)) == errno.ECONNREFUSED


def _own_socket(path: Path) -> bytes | None:
    """Return what identifies this user's socket at `path`; None if something else is there."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return None
    is_own = stat.S_ISSOCK(there.st_mode) and there.st_uid == os.geteuid()
    return b"%d %d" % (there.st_ino, there.st_mtime_ns) if is_own else None


class Listener:
    """A thread that serves a Unix socket: one borrower at a time, and any number of observers.

    Peers must belong to this process's user; the kernel reports their user id. Revocations do not
    depend on this thread.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        admit: Admit,
        welcome: Greet,
        show: Callable[[Channel], None],
        limit: Callable[[float], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Listen at `path`.

        Args:
            path: path of the socket to create; only the same user can connect.
            admit: function that makes a borrower a tenant, or raises the reason for rejecting it.
            welcome: function that returns the answer to a new tenant, with its descriptors.
            show: function that sends the ledger to an observer.
            limit: function that limits the loans to a share of the pool.
            on_failure: function that receives the exception that ended the thread.

        Raises:
            InvalidArgument: the path is too long, is empty, or has a zero byte.
            OSError: another process listens at `path`, a file there is not a socket of this user,
                or a socket cannot be created there.
        """
        self.path = check_path(path)
        self._admit = admit
        self._welcome = welcome
        self._show = show
        self._limit = limit
        self._on_failure = on_failure
        self._tenancy: Tenancy | None = None
        self._channel: Channel | None = None
        self._parting: Tenancy | None = None  # disconnected, and may still hold slabs
        self._silent: dict[Channel, None] = {}  # oldest first
        self._once = Once()
        self._open(Path(self.path))
        self._thread = Thread(self._run, name="rose-listener", on_failure=self._broke)
        self._thread.start()

    def _open(self, path: Path) -> None:
        with ExitStack() as undo:
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._wake, self._stop = os.pipe()
            undo.callback(close_all, (self._wake, self._stop))
            self._server, self._lock = _listen(path)
            self._selector.register(self._server, selectors.EVENT_READ, self._meet)
            self._selector.register(self._wake, selectors.EVENT_READ, None)
            undo.pop_all()

    @property
    def tenancy(self) -> Tenancy | None:
        """The attached borrower, if any."""
        return self._tenancy

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data()

    def _broke(self, failure: BaseException) -> None:
        """Refuse all further connections, and report the failure."""
        self._server.close()
        for channel in list(self._silent):
            self._hang_up(channel)
        self._on_failure(failure)

    # ---- connections ----------------------------------------------------------------------------

    def _meet(self) -> None:
        try:
            end, _ = self._server.accept()
        except OSError:  # No descriptor is left. Wait: `select` would return again at once.
            ended = select.poll()
            ended.register(self._wake, select.POLLIN)
            ended.poll(_BREATH_MS)
            return
        channel = Channel(end)
        self._silent[channel] = None
        self._selector.register(channel, selectors.EVENT_READ, partial(self._greet, channel))
        if len(self._silent) > _SILENT_MAX:
            self._hang_up(next(iter(self._silent)))

    def _hang_up(self, channel: Channel) -> None:
        self._listen_no_more(channel)
        channel.close()

    def _listen_no_more(self, channel: Channel) -> None:
        del self._silent[channel]
        self._selector.unregister(channel)

    def _greet(self, channel: Channel) -> None:
        if channel not in self._silent:  # It was closed in this round to limit silent connections.
            return
        self._listen_no_more(channel)
        try:
            if not self._is_kept(channel):
                channel.close()
        except (RoseError, OSError):  # The peer is gone, or does not speak this protocol.
            channel.close()

    def _is_kept(self, channel: Channel) -> bool:
        """Answer the first message of a connection; return True if the connection stays open."""
        # Received first: closing a connection with an unread message discards the answer.
        question, strays = channel.receive(timeout_s=_PATIENCE_S)
        close_all(strays)
        _, uid = channel.peer()
        if uid != os.geteuid():
            channel.send(Rejected(f"user {uid} may not use a device of user {os.geteuid()}", True))
            return False
        match question:
            case AskLedger():
                self._show(channel)
            case SetLimit(share=share):
                try:
                    self._limit(share)
                except Unavailable as error:
                    channel.send(Rejected(str(error), False))
                    return False
                self._show(channel)
            case Hello(format=number) if number != FORMAT:
                channel.send(
                    Rejected(
                        f"messages must have format {FORMAT}, got {number}: use the device's "
                        f"version of rose",
                        True,
                    )
                )
            case Hello() if self._tenancy is not None or not self._is_free():
                channel.send(
                    Rejected("a device can have one borrower, and this device has one", False)
                )
            case Hello():
                return self._admit_tenant(question, channel)
            case _:
                channel.send(Rejected("a borrower must send Hello first", True))
        return False

    def _admit_tenant(self, hello: Hello, channel: Channel) -> bool:
        try:
            tenancy = self._admit(hello, Process.of_peer(channel.fileno()))
        except RoseError as error:
            self._reject(channel, error)
            return False
        self._tenancy, self._channel = tenancy, channel
        self._selector.register(channel, selectors.EVENT_READ, self._answer)
        try:
            with self._welcome(tenancy) as (message, descriptors):
                channel.send(message, descriptors)
        except RoseError as error:
            with suppress(Unavailable):
                self._reject(channel, error)
            tenancy.has_left = True  # The borrower is not to blame.
            self._part()
        return True

    @staticmethod
    def _reject(channel: Channel, error: RoseError) -> None:
        wait_ms = error.retry_after_ms if isinstance(error, RetryLater) else 0.0
        channel.send(Rejected(str(error), not isinstance(error, Unavailable), wait_ms))

    # ---- the tenant -----------------------------------------------------------------------------

    def _answer(self) -> None:
        channel, tenancy = self._channel, self._tenancy
        if channel is None or tenancy is None:
            return None
        try:
            question, strays = channel.receive(timeout_s=_PATIENCE_S)
        except DeadlineExceeded:
            return None
        except (RoseError, OSError):
            return self._part()
        close_all(strays)
        try:
            match question:
                case AskGrow(blocks=blocks):
                    self._grow(tenancy, blocks, channel)
                case AskReason():
                    why = tenancy.why_refused()
                    segment = None if why.segment is None else why.segment.lengths
                    channel.send(Refused(why.reason.name, why.retry_after_ms, segment))
                case Leave():
                    tenancy.has_left = True
                    self._part()
                case _:
                    self._part()
        except (RoseError, OSError):
            self._part()

    @staticmethod
    def _grow(tenancy: Tenancy, blocks: int, channel: Channel) -> None:
        match tenancy.grow(blocks):
            case Refusal(reason=reason, retry_after_ms=retry_ms):
                channel.send(Refused(reason.name, retry_ms))
            case lent:
                with lent:
                    channel.send(Granted(tuple(lent.fds)), list(lent.fds.values()))

    def _part(self) -> None:
        """Disconnect from the tenant and end its tenancy."""
        channel, tenancy = self._channel, self._tenancy
        self._channel = self._tenancy = None
        if channel is not None:
            self._selector.unregister(channel)
            channel.close()
        if tenancy is not None:
            self._parting = tenancy  # Set first, so that a failure is retried at the next hello.
            with suppress(RoseError):
                tenancy.end()
                self._is_free()

    def _is_free(self) -> bool:
        """Return True if all slabs of the previous borrower are back."""
        if self._parting is not None and self._parting.is_over(wait_ms=_PARTING_MS):
            self._parting = None
        return self._parting is None

    def close(self) -> None:
        """Disconnect, remove the socket, and join the thread. Idempotent."""
        self._once(self._close)

    def _close(self) -> None:
        os.close(self._stop)  # The other end of the pipe becomes readable.
        if self._thread is not threading.current_thread():
            self._thread.join()
        for channel in list(self._silent):
            self._hang_up(channel)
        self._part()
        if self._parting is not None:  # Its process was killed, but has not ended yet.
            self._parting.let_go()
        self._selector.close()
        self._server.close()
        os.close(self._wake)
        if _own_socket(Path(self.path)) is not None:
            Path(self.path).unlink()
        self._lock.close()  # Last, because from now on another process may listen here.
