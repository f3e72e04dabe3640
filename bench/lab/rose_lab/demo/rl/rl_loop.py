"""The RL loop: workers generate trajectories, a trainer learns, workers get the new weights.

Three programs are supervised: the trainer, a relay for its weights, and a dedicated worker. A
borrowed worker runs in this process, beside serving. A program that dies is restarted; meanwhile
the loop continues without it.
"""

import asyncio
import secrets
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import msgspec

from rose.adapters.fleet import Fleet
from rose.adapters.fleet_limits import FleetLimits
from rose.clock import Clock
from rose.engines.transformers import EngineWorker, LiveWeights
from rose.errors import DeadlineExceeded, Unavailable
from rose.node.feed import receive
from rose.scheduler import Capabilities, ElasticRolloutScheduler
from rose.scheduler.events import Consumed, VersionPublished
from rose.scheduler.worker import GrantChanged, Worker, WorkerEvent, WorkerLost
from rose.transfer.manifest import Manifest
from rose.transfer.received import WeightReceiver
from rose.transfer.source import Source, SourceAround
from rose.transfer.wire.remote import RemoteSource
from rose_lab.demo.rl.handoff import Handoff
from rose_lab.demo.rl.history import RelayedBytes
from rose_lab.demo.rl.messages import submit
from rose_lab.demo.rl.rollouts import RolloutThread
from rose_lab.demo.rl.settings import RlLoopSettings, TrainerOptions
from rose_lab.demo.rl.supervisor import OnReady, Supervisor
from rose_lab.demo.rl.training import unsaved_max


class NotedSource(SourceAround):
    """Wraps a `rose.transfer.source.Source` and reports its manifests.

    Args:
        source: wrapped source.
        note: gets each manifest in the calling thread; must not block.
    """

    def __init__(self, source: Source, note: Callable[[Manifest], None]) -> None:
        super().__init__(source)
        self._note = note

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for versions, and report their manifests."""
        manifests = self._source.wait_manifests(after_n, timeout_s)
        for manifest in manifests:
            self._note(manifest)
        return manifests

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Request a snapshot, and report its manifest if it contains chunks."""
        manifest = self._source.snapshot(n, tiles)
        if manifest is not None and manifest.chunks:
            self._note(manifest)
        return manifest


BORROWED: Final = 0
TRAINER: Final = "trainer"
RELAY: Final = "relay"
DEDICATED: Final = "dedicated worker"
_DEDICATED: Final = 1
_READY_S: Final = 180.0
_TOKEN_BYTES: Final = 32


class _Watched:
    """The scheduler as the owner of a fleet, with a function that sees the workers' events first.

    Args:
        scheduler: scheduler that the workers join.
        watch: called with each event.
    """

    facts: Callable[[], FleetLimits]

    def __init__(
        self, scheduler: ElasticRolloutScheduler, watch: Callable[[WorkerEvent], None]
    ) -> None:
        self.scheduler, self._watch = scheduler, watch

    def receive(self, event: WorkerEvent) -> None:
        self._watch(event)
        self.scheduler.receive(event)

    async def register(
        self,
        worker: Worker,
        capabilities: Capabilities,
        limits: FleetLimits | None = None,  # noqa: ARG002 (the trainer asks for nothing else)
    ) -> None:
        await self.scheduler.register(worker, capabilities)


class RlLoop:
    """Owns the programs, the rollouts and all connections between them.

    Args:
        settings: settings of the loop.
        wait_s: maps `(trajectory, turn)` to the tool's duration in seconds.
        clock: time source.

    Attributes:
        programs: started programs by name.
    """

    def __init__(
        self, settings: RlLoopSettings, *, wait_s: Callable[[int, int], float], clock: Clock
    ) -> None:
        self._settings = settings
        self._checkpoint = settings.folder / "trainer.checkpoint"
        self._clock = clock
        self.handoff = Handoff(
            kept=unsaved_max(settings.trainer.batch, settings.rollouts.group_size),
            report=self._send,
            on_refused=self._refused,
        )
        self.rollouts = RolloutThread(
            settings.rollouts,
            scheduler=settings.scheduler,
            seed=settings.seed,
            wait_s=wait_s,
            on_finished=self.handoff.put,
            clock=clock,
        )
        self.history = self.rollouts.history
        self._token = secrets.token_hex(_TOKEN_BYTES)
        self._trainer_address = "127.0.0.1:0"
        self._weights_address = "127.0.0.1:0"  # where the relay listens
        self.relayed = RelayedBytes()
        self.programs: dict[str, Supervisor] = {}
        self._given_up: str | None = None
        self._parts = ExitStack()
        self._engine_address = ""  # of the dedicated engine; the same for all its incarnations
        self._is_joined = False  # whether the running incarnation has had a grant
        self._receiver: WeightReceiver | None = None
        self._speed: dict[str, Any] = {}

    # ---- public ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the programs and the trajectories, and wait until all programs are ready.

        Raises:
            Unavailable: a program does not start.
            DeadlineExceeded: a program is not ready in time.
        """
        self._start(TRAINER, self._trainer_command, self._trainer_began)
        self._start(RELAY, self._relay_command, self._relay_began, on_line=self.relayed.receive)
        self._parts.callback(self.handoff.stop)
        self._parts.callback(self.rollouts.stop)
        self.rollouts.start()
        self.handoff.start()
        self._start(DEDICATED, self._worker_command, self._worker_began)

    def add_borrowed(
        self, worker: EngineWorker, weights: LiveWeights, *, seats: int, share: float
    ) -> None:
        """Add a borrowed worker after `start`; its engine must be running.

        Args:
            worker: worker with number `BORROWED`, made with `on_event=rl_loop.rollouts.receive`.
            weights: weights of the engine's model, loaded from `settings.model`.
            seats: maximum concurrent turns.
            share: expected share of time in which the worker runs, > 0; its speed is estimated as
                this share of the dedicated worker's measured speed.
        """
        source = RemoteSource(self._weights_address, self._token)
        noted = NotedSource(source, self.history.version)
        self._receiver = receive(noted, weights, worker, name=f"worker-{BORROWED}", version=0)
        self._parts.callback(self._receiver.close)
        self._parts.callback(source.close)  # Runs before the receiver's close, to unblock it.
        measured = self._speed
        can = Capabilities(
            seats=seats,
            prefill_tokens_per_s=measured["prefill_tokens_per_s"] * share,
            decode_step_ms=measured["decode_step_ms"] / share,
            decode_ms_per_sequence=measured["decode_ms_per_sequence"] / share,
            domain=BORROWED,
        )
        self.rollouts.join(worker, can)

    def lost(self) -> int:
        """Return the number of unaccounted trajectories; exact after `stop`.

        A started trajectory must be in flight, dropped, waiting for handoff, refused by the
        trainer, or known to the trainer.
        """
        counts, handoff = self.rollouts.counts(), self.handoff
        known = handoff.status.consumed + handoff.waiting + handoff.refused
        return counts.lost + max(0, counts.finished - known)

    def failure(self) -> str | None:
        """Return why the loop ended for good; None while it runs."""
        for part in (self.rollouts, self.handoff):
            if part.error is not None:
                return str(part.error)
        return self._given_up

    def stop(self) -> None:
        """Stop all parts in an order that loses no trajectory; counts stay available.

        Raises:
            DeadlineExceeded: a thread or a program does not end; all others were stopped.
        """
        self._parts.close()

    def _send(self, news: VersionPublished | Consumed) -> None:
        self.rollouts.send(news)

    def _refused(self, why: str) -> None:
        self.history.incident(f"the trainer refuses a trajectory: {why}")
        self.rollouts.send(Consumed(1))  # Lets the scheduler admit another trajectory instead.

    # ---- the programs ---------------------------------------------------------------------------

    def _start(
        self,
        name: str,
        make_command: Callable[[int], Sequence[str]],
        began: OnReady,
        *,
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start a program, and wait until it is ready."""
        is_up = threading.Event()

        def on_ready(incarnation: int, ready: dict[str, Any], connection: Any) -> None:
            if incarnation:
                self.history.incident(f"{name} is back")
            began(incarnation, ready, connection)
            is_up.set()

        self.programs[name] = Supervisor(
            make_command,
            on_ready,
            partial(self._died, name, is_up),
            on_line=on_line,
            token=self._token,
            is_background=self._settings.is_background,
            clock=self._clock,
        )
        self._parts.callback(self.programs[name].stop)
        if not is_up.wait(timeout=_READY_S):
            raise DeadlineExceeded(f"the {name} was not ready within {_READY_S:g} s")
        if self._given_up is not None:
            raise Unavailable(self._given_up)

    def _died(self, name: str, is_up: threading.Event, reason: str, is_final: bool) -> None:  # noqa: FBT001
        self.history.incident(f"{name} died: {reason}")
        if name == TRAINER:
            self.handoff.follow(None)
        if is_final or not is_up.is_set():
            # A restart would not help a program that was never ready.
            self._given_up = f"the {name} was given up: {reason}"
            is_up.set()

    def _trainer_command(self, _incarnation: int) -> list[str]:
        settings, version = self._settings, self.handoff.version
        options = TrainerOptions(
            model=settings.model,
            seed=settings.seed,
            run=f"seed-{settings.seed}",
            checkpoint=str(self._checkpoint),
            group_size=settings.rollouts.group_size,
            settings=settings.trainer,
            first_version=version + 1 if version else 0,
            weights_address=self._trainer_address,
        )
        words = msgspec.json.encode(options).decode()
        return [sys.executable, "-m", "rose_lab.demo.rl.program", words]

    def _trainer_began(self, _incarnation: int, ready: dict[str, Any], connection: Any) -> None:
        self._trainer_address = ready["weights_address"]
        self.handoff.follow(partial(submit, connection))

    def _relay_command(self, _incarnation: int) -> list[str]:
        self.relayed.begin()
        return [
            *(sys.executable, "-m", "rose.cli.main", "relay", "--json"),
            *(f"--upstream={self._trainer_address}", f"--listen={self._weights_address}"),
        ]

    def _relay_began(self, _incarnation: int, ready: dict[str, Any], _connection: Any) -> None:
        # Later incarnations reuse the address, so that workers find them.
        self._weights_address = ready["address"]

    def _worker_command(self, _incarnation: int) -> list[str]:
        settings = self._settings
        self._is_joined = False
        if not self._engine_address:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._engine_address = f"127.0.0.1:{free.getsockname()[1]}"
        token_file = settings.folder / "token"
        token_file.write_text(self._token)
        return [
            *(sys.executable, "-m", "rose.cli.main", "engine", settings.model),
            *(f"--seed={settings.seed}", f"--listen={self._engine_address}"),
            *(f"--seats={settings.seats}", f"--kv-tokens={settings.kv_tokens}"),
            *(f"--weights={self._weights_address}", f"--weights-token={token_file}"),
        ]

    def _worker_began(self, incarnation: int, ready: dict[str, Any], _connection: Any) -> None:
        self._speed = self._told_speed(ready["url"])
        if incarnation == 0:
            self.rollouts.accompany(partial(self._follow_engine, ready["url"]))

    def _told_speed(self, url: str) -> dict[str, Any]:
        """Return the speed that the dedicated engine has measured."""
        asked = urllib.request.Request(
            f"{url}/rose/status", headers={"authorization": f"Bearer {self._token}"}
        )
        with urllib.request.urlopen(asked, timeout=_READY_S) as answer:
            status: dict[str, Any] = msgspec.json.decode(answer.read())["engine"]["status"]
        return status

    async def _follow_engine(self, url: str) -> None:
        """Join the dedicated engine, and its next incarnations at the same address."""
        watched = _Watched(self.rollouts.scheduler, self._note)
        async with Fleet(watched, first=_DEDICATED) as fleet:
            await fleet.add(url, token=self._token)
            await asyncio.Event().wait()

    def _note(self, event: WorkerEvent) -> None:
        """Restart an engine that is lost or has no grant, if it was joined before.

        A dedicated engine is without a grant only because its weights are unknown.
        """
        if isinstance(event, GrantChanged) and event.kv_tokens > 0:
            self._is_joined = True
        elif isinstance(event, WorkerLost | GrantChanged) and self._is_joined:
            self._is_joined = False
            self.programs[DEDICATED].kill()  # The supervisor starts the next incarnation.
