"""Starts the engines of this machine, restarts them, and leaves none behind."""

import asyncio
import fcntl
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from typing_extensions import Self

from rose.clock import BootClock, Clock
from rose.config import environment_of_program
from rose.errors import InvalidArgument
from rose.node.commands import Command
from rose.units import NS_PER_S

_LOG: Final = logging.getLogger("rose.programs")
_BACKOFF_S: Final = 0.5  # pause before the first restart; doubles with each early death
_BACKOFF_MAX_S: Final = 10.0
_SOUND_S: Final = 60.0  # a program that ran for so long has not died early
_STOP_S: Final = 20.0  # time to end after SIGTERM; then it is killed


class Programs:
    """Keeps programs running until the end of the context.

    Each program runs in a session of its own, without stdin, and writes to `NAME.log`. At the end
    of the context the programs get SIGTERM. If this process dies for any reason, the kernel kills
    the programs and their children.

    Args:
        commands: programs to start.
        logs: folder for the logs.
        clock: time source.

    Raises:
        InvalidArgument: the folder of the logs cannot be used.
    """

    def __init__(self, commands: list[Command], logs: Path, *, clock: Clock | None = None) -> None:
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"cannot make the folder {logs}: {error.strerror}") from error
        clock = clock or BootClock()
        self.programs = [Program(command, logs, clock) for command in commands]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(one.run()) for one in self.programs]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for program in self.programs:
            program.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)


class Program:
    """One program, started again whenever it ends. For the event loop's thread.

    Args:
        command: how to start it.
        logs: folder for its log.
        clock: time source.
    """

    def __init__(self, command: Command, logs: Path, clock: Clock) -> None:
        self.command = command
        self.pid: int | None = None
        self.starts = 0
        self._log = logs / f"{command.name}.log"
        self._clock = clock
        self._is_stopping = asyncio.Event()

    def stop(self) -> None:
        """Let `run` stop the program and return."""
        self._is_stopping.set()

    async def run(self) -> None:
        """Run the program until it is stopped."""
        backoff_s = _BACKOFF_S
        while not self._is_stopping.is_set():
            began_ns = self._clock.now_ns()
            why = await self._run_once()
            if self._is_stopping.is_set():
                return
            if self._clock.now_ns() - began_ns > _SOUND_S * NS_PER_S:
                backoff_s = _BACKOFF_S
            _LOG.warning(
                "%s %s; it starts again in %.1f s; its log is %s",
                self.command.name,
                why,
                backoff_s,
                self._log,
            )
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    async def _run_once(self) -> str:
        """Run the program to its end; return how it ended."""
        # Nothing is written to the lifeline, and only this process has its write end.
        theirs, lifeline = os.pipe()
        try:
            try:
                process = await self._start(theirs)
            finally:
                os.close(theirs)
            return await self._until_end(process)
        except OSError as error:
            return f"cannot be started: {error.strerror or error}"
        finally:
            self.pid = None
            os.close(lifeline)

    async def _start(self, theirs: int) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.command.words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_of_program(self.command.environment),
                pass_fds=(theirs,),
                start_new_session=True,
            )
        # When this process dies, the pipe closes, and the kernel kills the program and its
        # children, even if the program has not begun to run.
        fcntl.fcntl(theirs, fcntl.F_SETOWN, -process.pid)
        fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(theirs, fcntl.F_SETFL, os.O_ASYNC)
        self.pid = process.pid
        self.starts += 1
        return process

    async def _until_end(self, process: asyncio.subprocess.Process) -> str:
        ended = asyncio.ensure_future(process.wait())
        stopped = asyncio.ensure_future(self._is_stopping.wait())
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ended.done():
            with suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait({ended}, timeout=_STOP_S)
        # Its children end with it: the group is its own, as long as one of them lives.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = await ended
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
