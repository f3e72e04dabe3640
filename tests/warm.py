"""Programs that start within milliseconds: forks of a process that has imported torch and models.

`WarmPopen` stands in for `subprocess.Popen` where a program is `python -m MODULE ...`. What a test
sees of it is the same: pipes, a process number to signal, a session of its own, an exit status.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from typing_extensions import Self

ROOT: Final = Path(__file__).resolve().parents[1]
# What programs import, and none of the programs: `runpy` runs them as if they were new.
IMPORTS: Final = (
    "rose_lab.demo.rl.trainer",
    "rose.engines.transformers",
    "rose.node.assembly",
    "rose.transfer.wire.remote",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
)
_MESSAGE_BYTES: Final = 1 << 16
_FILES: Final = 8


class Nursery:
    """A process that forks programs on demand; it ends with the process that opened it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()  # one question at a time
        with theirs:
            command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._socket.close()
        self._process.wait()

    def ask(self, question: dict[str, object], files: list[int] | None = None) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(question).encode()], files or [])
            answer = self._socket.recv(_MESSAGE_BYTES)
        assert answer, "the nursery has ended"
        return json.loads(answer)


class WarmPopen:
    """A program that a nursery forked."""

    def __init__(
        self,
        nursery: Nursery,
        command: list[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        cwd: Path | None = None,
        pass_fds: tuple[int, ...] = (),
        start_new_session: bool = False,
        bufsize: int = -1,
        env: dict[str, str] | None = None,
    ) -> None:
        python, option, module, *arguments = command
        assert (python, option) == (sys.executable, "-m")
        self.returncode: int | None = None
        self._nursery = nursery
        ours, theirs = [], []
        with contextlib.ExitStack() as undo:
            for number, wanted in enumerate((stdin, stdout, stderr)):
                if wanted != subprocess.PIPE:
                    ours.append(None)
                    inherited = number if wanted is None else wanted
                    theirs.append(theirs[1] if wanted == subprocess.STDOUT else inherited)
                    continue
                reads, writes = os.pipe()
                undo.callback(os.close, writes if number else reads)
                ends = (reads, "rb") if number else (writes, "wb")
                ours.append(os.fdopen(*ends, bufsize))
                theirs.append(writes if number else reads)
            self.stdin, self.stdout, self.stderr = ours
            question = {
                "module": module,
                "arguments": arguments,
                "folder": str(cwd or Path.cwd()),
                "environment": dict(os.environ if env is None else env),
                "session": start_new_session,
            }
            self.pid = nursery.ask(question, [*theirs, *pass_fds])

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            died = os.pidfd_open(self.pid)  # its number is its own until the nursery is asked
            try:
                if not select.select([died], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            finally:
                os.close(died)
            self.returncode = self._nursery.ask({"wait": self.pid})
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Start: TypeAlias = Callable[..., WarmPopen]


def serve(asked: socket.socket) -> None:
    """Fork what is asked for, in children only; the nursery itself stays in here."""
    while True:
        text, files, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, _FILES)
        if not text:
            return
        question = json.loads(text)
        if (number := question.get("wait")) is not None:
            _, status = os.waitpid(number, 0)
            asked.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        told, tell = os.pipe()
        if (number := os.fork()) == 0:
            asked.close()
            os.close(told)
            _become(question, files, tell)
        for file in (*files, tell):
            os.close(file)
        os.read(told, 1)  # until it is what was asked for: a session of its own may be signalled
        os.close(told)
        asked.send(json.dumps(number).encode())


def _become(question: dict, files: list[int], tell: int) -> None:
    """Run the program in place of this process; what it passes on stays open."""
    status = 1
    try:
        if question["session"]:
            os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        for file in files[:3]:
            os.close(file)
        # Not those of the nursery: they remember whether its own can be searched.
        sys.stdin, sys.stdout = (os.fdopen(at, "rw"[at], closefd=False) for at in (0, 1))
        sys.stderr = os.fdopen(2, "w", 1, closefd=False)
        os.chdir(question["folder"])
        os.environ.clear()
        os.environ.update(question["environment"])
        os.close(tell)
        sys.argv = [question["module"], *question["arguments"]]
        runpy.run_module(question["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
    finally:
        if sys.exc_info()[1] is not None:
            traceback.print_exc()
        # As an interpreter ends: threads that are no daemons first.
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        serve(asked)


if __name__ == "__main__":
    main()
