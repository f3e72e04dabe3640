"""The rollout service, a dedicated worker, a serving engine, and a worker that borrows from it."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from typing_extensions import Self

import rose
from rose.adapters import RolloutService, rollout_app
from rose.adapters.listening import listening
from rose.scheduler.remote import RemoteWorker
from rose.scheduler.turns import capabilities_of
from rose.scheduler.worker import GrantChanged, TurnOutput, WorkerEvent, WorkerKind, WorkerLost

SEATS: Final = 32
# Seats of the dedicated worker if another worker borrows. There are few, so that the borrowed
# worker generates most of the tokens.
SEATS_BESIDE: Final = 1
KV_TOKENS: Final = 4096
READY_S: Final = 180.0
SERVING: Final = Path(__file__).with_name("serving.py")


class Fleet:
    """Processes and service of one run; they end with the `with` block.

    Args:
        folder: folder with the model; the device's socket is made there.
        publisher: publisher of the model's weights.
        is_lending: whether a worker borrows from the serving engine.
        seed: seed of the traffic.
    """

    def __init__(
        self,
        folder: Path,
        publisher: rose.WeightPublisher,
        *,
        is_lending: bool,
        seed: int = 0,
    ) -> None:
        self._folder, self._publisher, self._seed = folder, publisher, seed
        self._is_lending = is_lending
        self.socket = folder / "lend.sock"
        self._numbers = count()
        self._parts = ExitStack()
        self._is_over = threading.Event()
        self._restarts: list[threading.Thread] = []
        self.workers: dict[WorkerKind, subprocess.Popen[str]] = {}
        """The current process of each worker; a lost process is replaced."""
        self.tokens: Counter[str] = Counter()
        """Tokens that workers reported, by kind of worker."""
        self.served: dict[str, Any] = {}
        """The serving engine's report of its requests, available at the end."""

    # ---- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._parts.close)
            ready: Future[str] = Future()
            loop = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
            self._parts.callback(loop.join)
            self._parts.callback(self._stop_service)
            loop.start()
            self.url = ready.result(READY_S)
            self._begin_worker(WorkerKind.DEDICATED)
            self._serving = self._begin([str(SERVING), str(self.socket), str(self._seed)])
            self._parts.callback(self._end_serving)
            assert self._line(self._serving) == "ready"
            if self._is_lending:
                self._begin_worker(WorkerKind.BORROWED)
            for kind in self.workers:
                self._join(kind)
            self._begin_traffic()
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for restart in self._restarts:
            restart.join(READY_S)
        self._parts.close()

    async def _serve(self, ready: "Future[str]") -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with (
            RolloutService() as self.service,
            listening(rollout_app(self.service, model="policy")) as url,
        ):
            ready.set_result(url)
            await self._stopped.wait()

    def _stop_service(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)

    def _begin_traffic(self) -> None:
        """Let requests arrive, now that starting processes no longer compete for the cores."""
        assert self._serving.stdin is not None
        self._serving.stdin.write("\n")
        self._serving.stdin.flush()

    def _end_serving(self) -> None:
        output, _ = self._serving.communicate(timeout=READY_S)
        self.served = json.loads(output.splitlines()[-1])

    # ---- processes ------------------------------------------------------------------------------

    def _begin(self, arguments: list[str]) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ROSE_TOKEN": self._publisher.token, "OMP_NUM_THREADS": "1"},
        )
        self._parts.callback(process.wait)
        self._parts.callback(process.kill)
        return process

    def _begin_worker(self, kind: WorkerKind) -> None:
        is_borrowed = kind is WorkerKind.BORROWED
        seats = SEATS_BESIDE if self._is_lending and not is_borrowed else SEATS
        self.workers[kind] = self._begin(
            [
                *("-m", "rose.node.worker", f"--model={self._folder}"),
                *([f"--attach={self.socket}"] if is_borrowed else []),
                *(f"--number={next(self._numbers)}", f"--seats={seats}"),
                *(f"--kv-tokens={KV_TOKENS}", f"--weights={self._publisher.address}"),
            ]
        )

    def _restart(self, kind: WorkerKind) -> None:
        """Replace a lost worker; the new worker gets the newest weights before it generates."""
        while not self._is_over.is_set():
            self.workers[kind].kill()
            with suppress(rose.Unavailable):  # It may be killed again before it is ready.
                self._begin_worker(kind)
                self._join(kind)
                return

    def _join(self, kind: WorkerKind) -> None:
        ready = json.loads(self._line(self.workers[kind]))

        is_granted = threading.Event()

        def receive(event: WorkerEvent) -> None:
            if isinstance(event, GrantChanged) and event.kv_tokens:
                is_granted.set()
            if isinstance(event, TurnOutput):
                self.tokens[kind.value] += len(event.tokens)
            self.service.receive(event)
            if isinstance(event, WorkerLost) and not self._is_over.is_set():
                self._restarts.append(threading.Thread(target=self._restart, args=(kind,)))
                self._restarts[-1].start()

        worker = RemoteWorker(ready["address"], ready["token"], ready["worker"], kind, receive)
        self._parts.callback(worker.close)
        joining = self.service.register(worker, capabilities_of(ready))
        asyncio.run_coroutine_threadsafe(joining, self._loop).result(READY_S)
        if not is_granted.wait(READY_S):
            raise rose.DeadlineExceeded(
                f"worker {ready['worker']} got no memory within {READY_S} s"
            )

    @staticmethod
    def _line(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        late = threading.Timer(READY_S, process.kill)
        late.start()
        line = process.stdout.readline().strip()
        late.cancel()
        if not line:
            status = process.wait(READY_S)
            raise rose.Unavailable(f"a process ended with status {status} before it was ready")
        return line
