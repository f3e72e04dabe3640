"""The rollout service, a dedicated engine, a serving engine, and an engine that borrows from it."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from typing_extensions import Self

import rose
from rose.adapters import RolloutService, rollout_app
from rose.adapters.fleet import Fleet as Engines
from rose.adapters.listening import listening
from rose.node import fleet_file
from rose.node.commands import Command, commands_of
from rose.node.fleet_file import EnginePart, FleetFile, ServicePart, WeightsPart
from rose.node.supervisor import Supervisor
from rose.scheduler.worker import TurnOutput, WorkerEvent, WorkerKind

# The dedicated engine has few seats beside another, so that the borrower generates most tokens.
SEATS, SEATS_BESIDE, KV_TOKENS, READY_S = 32, 1, 4096, 180.0
SERVING: Final = Path(__file__).with_name("serving.py")
KINDS: Final = (WorkerKind.DEDICATED, WorkerKind.BORROWED)
TOKEN: Final = "of the engines"


class Counting(RolloutService):
    """A rollout service that counts the tokens of each kind of worker."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: Counter[str] = Counter()

    def receive(self, event: WorkerEvent) -> None:
        """Count tokens, and accept the event."""
        if isinstance(event, TurnOutput):
            self.tokens[KINDS[event.worker].value] += len(event.tokens)
        super().receive(event)


class Fleet:
    """Processes and service of one run; they end with the `with` block.

    Args:
        folder: folder with the model; the device's socket is made there.
        publisher: publisher of the model's weights.
        is_lending: whether an engine borrows from the serving engine.
        seed: seed of the traffic.
    """

    def __init__(
        self, folder: Path, publisher: rose.WeightPublisher, *, is_lending: bool, seed: int = 0
    ) -> None:
        self.socket = folder / "lend.sock"
        self._folder, self._seed = folder, seed
        (folder / "token").write_text(publisher.token)
        seats = SEATS_BESIDE if is_lending else SEATS
        sizes = {"model": str(folder), "kv_tokens": KV_TOKENS, "env": {"OMP_NUM_THREADS": "1"}}
        parts = [EnginePart(name="dedicated", seats=seats, **sizes)]
        if is_lending:
            parts += [EnginePart(name="borrowed", seats=SEATS, attach=str(self.socket), **sizes)]
        weights = WeightsPart(address=publisher.address, token_file="token")
        file = FleetFile(engines=tuple(parts), service=ServicePart(weights=weights))
        self._commands: list[Command] = list(commands_of(fleet_file.Fleet(file, folder), TOKEN))
        self.served: dict[str, Any] = {}  # the serving engine's report, available at the end

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            command = [sys.executable, str(SERVING), str(self.socket), str(self._seed)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._serving = undo.enter_context(subprocess.Popen(command, **pipes))
            undo.callback(self._serving.kill)
            assert self._serving.stdout.readline() == "ready\n"
            ready: Future[str] = Future()
            loop = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
            loop.start()
            undo.callback(loop.join, READY_S)
            self.url = ready.result(READY_S)
            undo.callback(self._end_serving)
            undo.callback(self._loop.call_soon_threadsafe, self._stopped.set)
            print(file=self._serving.stdin, flush=True)  # Now its traffic begins.
            self._parts = undo.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._parts.close()

    async def _serve(self, ready: "Future[str]") -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with (
                Counting() as self.service,
                Supervisor(self._commands, self._folder / "logs") as self._supervisor,
                Engines(self.service) as engines,
                listening(rollout_app(self.service, model="policy", fleet=engines)) as url,
            ):
                for command in self._commands:
                    await engines.add(str(command.url), token=TOKEN)
                while not all(row.kv_tokens for row in engines.list()):
                    await asyncio.sleep(0.1)
                self.tokens = self.service.tokens
                ready.set_result(url)
                await self._stopped.wait()
        finally:
            if not ready.done():
                ready.set_exception(rose.Unavailable("the fleet did not start; see its logs"))

    def pid(self, kind: WorkerKind) -> int | None:
        """Return the number of an engine's process; None while it starts again."""
        return self._supervisor.programs[KINDS.index(kind)].pid

    def _end_serving(self) -> None:
        output, _ = self._serving.communicate(timeout=READY_S)
        self.served = json.loads(output.splitlines()[-1])
