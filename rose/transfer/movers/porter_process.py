"""A porter from the side of who started it: minded, given deadlines, and never left behind."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from typing import Any, Final

from rose.closing import Closing
from rose.config import porter_environment
from rose.errors import CorruptData, DeadlineExceeded, Unavailable, check
from rose.transfer.movers import porter
from rose.transfer.movers.bounce import Bounce
from rose.transfer.movers.introduction import Introduction
from rose.transfer.movers.kinds import module_of

# A machine that is busy takes seconds to load such a library.
START_S: Final = 120.0
_MODULE: Final = "rose.transfer.movers.porter"
# What is kept of what it says on stderr: the first of it, for nobody reads it while it runs.
_WORDS_BYTES: Final = 1 << 16
_LAST_WORDS_S: Final = 10.0


class PorterProcess(Closing):
    """A process that carries by one mover between its bounce memory and that of others.

    It is started when it is made, and ready when it has introduced itself: until then it can be
    closed already, so that nobody waits for a library that takes its time. One thread at a time
    reads; any thread may call the rest. It is killed when it is closed: it has nothing that anybody
    would miss.

    Args:
        mover: one of `MOVERS`.
        nbytes: of bounce memory.
        join: whose network it enters, to read from there; None: it makes one, for others to read.
        start_s: for it to be ready.

    Raises:
        InvalidArgument: there is no such mover, or it is not installed.
        Unavailable: it cannot be started.
    """

    def __init__(
        self,
        mover: str,
        nbytes: int,
        *,
        join: Introduction | None = None,
        start_s: float = START_S,
    ) -> None:
        self._mover, self._start_s = mover, start_s
        module = module_of(mover)
        self._introduced: Introduction | None = None
        self._starting = threading.Lock()  # held while it is waited for; guards the introduction
        self._lock = threading.Lock()  # guards what is said to it, and whether it is closed
        self._hearing = threading.Lock()  # held while what it says is waited for
        self._is_closed = False
        with ExitStack() as undo:
            try:
                self._start(mover, nbytes, undo)
            except OSError as error:
                raise Unavailable(f"no porter of {mover} can be started: {error}") from error
            undo.pop_all()
        place = None if join is None else (join.pid, join.network)
        told = {"mover": mover, "module": module, "nbytes": nbytes, "fd": self.bounce.fd}
        with ExitStack() as undo:
            undo.callback(self.close)
            self._say({**told, "join": place})
            undo.pop_all()

    def _start(self, mover: str, nbytes: int, undo: ExitStack) -> None:
        self.bounce = undo.enter_context(Bounce(nbytes))
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.enter_context(self._wire)
        with theirs:
            self._words = _words()
            undo.callback(os.close, self._words)
            # Nothing is written to it: that this process has its end keeps the porter alive.
            lifeline, self._lifeline = os.pipe()
            undo.callback(os.close, self._lifeline)
            with os.fdopen(lifeline):
                wires = (theirs.fileno(), lifeline)
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _MODULE, *map(str, wires)],
                    pass_fds=(*wires, self.bounce.fd),
                    # Not ours, which has the token.
                    env=porter_environment(sys.path, porter.ENVIRONMENTS[mover]),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._words,
                    start_new_session=True,
                )

    @property
    def introduction(self) -> Introduction:
        """Return who it is, once it is ready.

        Raises:
            Unavailable: it could not be started, and the sentence has its last words; or it was
                closed.
            DeadlineExceeded: it is not ready in time. After any error it is closed.
            CorruptData: it says what introduces nobody.
        """
        with self._starting:
            if self._introduced is None:
                with ExitStack() as undo:
                    undo.callback(self.close)
                    self._introduced = self._heard()
                    undo.pop_all()
            return self._introduced

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        with self._lock:
            return not self._is_closed and self._process.poll() is None

    def serve(self, is_serving: bool) -> None:  # noqa: FBT001
        """Say whether others may read now: some movers are busy while they may.

        Raises:
            Unavailable: it has ended.
        """
        self._say({"serve": is_serving})

    def read(self, peer: Introduction, offset: int, nbytes: int, timeout_s: float) -> None:
        """Read from an offset of another's bounce memory to the beginning of ours.

        It is ready. Whatever is raised, the porter is not to be used any more: what it began may
        still come.

        Raises:
            Unavailable: it did not come, or the porter has ended.
            CorruptData: the porter says what is no answer.
            DeadlineExceeded: it did not come in time; the porter was killed.
        """
        check(self._introduced is not None, "a porter that reads has introduced itself")
        self._say({"read": [peer.peer, peer.base + offset, nbytes]})
        if _answer(self._hear(timeout_s)).get("came") is not True:
            raise Unavailable(f"{self._mover} could not read from the weight server")

    def close(self) -> None:
        """Kill it, if it still runs; whoever reads gets `Unavailable`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._process.kill()
            self._process.wait()
            # Whoever waits for an answer wakes, also where somebody else has the other end.
            self._wire.shutdown(socket.SHUT_RDWR)
        with self._hearing:
            self._wire.close()
            os.close(self._words)
            os.close(self._lifeline)
            self.bounce.close()

    def _heard(self) -> Introduction:
        content = self._hear(self._start_s)
        failed = _answer(content).get("failed")
        if failed is not None:
            raise Unavailable(str(failed))
        return Introduction.from_json(content)

    def _say(self, told: dict[str, Any]) -> None:
        with self._lock:
            try:
                self._wire.send(json.dumps(told).encode())
            except OSError as error:
                raise Unavailable(f"the porter of {self._mover} has ended") from error

    def _hear(self, timeout_s: float) -> bytes:
        with self._hearing:
            try:
                self._wire.settimeout(timeout_s)
                content = self._wire.recv(porter.MESSAGE_BYTES_MAX)
            except TimeoutError as error:
                self._process.kill()  # it may be in the middle of what it was told
                raise DeadlineExceeded(f"{self._mover} took more than {timeout_s} s") from error
            except OSError as error:
                raise Unavailable(f"the porter of {self._mover} was closed") from error
            if content:
                return content
            with self._lock:
                is_closed = self._is_closed
            why = "was closed" if is_closed else f"has ended: {self._last_words()}"
            raise Unavailable(f"the porter of {self._mover} {why}")

    def _last_words(self) -> str:
        """Return the last line that it said, which for an exception is what it says."""
        with suppress(subprocess.TimeoutExpired):  # it hangs up before it says why
            self._process.wait(_LAST_WORDS_S)
        said = os.pread(self._words, _WORDS_BYTES, 0).rstrip(b"\0").decode(errors="replace")
        lines = [line for line in said.splitlines() if line.strip()]
        return lines[-1][:500] if lines else "it said nothing"


def _answer(content: bytes) -> dict[str, Any]:
    """Return what a porter says: it has a library of others in it, and is not believed blindly."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptData("a porter says what is no answer") from error
    if not isinstance(answer, dict):
        raise CorruptData("a porter says what is no answer")
    return answer


def _words() -> int:
    """Return memory that a child can write to as to a file, until it is full."""
    fd = os.memfd_create("rose-porter", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, _WORDS_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return fd
