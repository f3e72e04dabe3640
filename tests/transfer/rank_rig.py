"""One rank of a replica with an engine's loop in a thread: steps, and pauses between them."""

import threading
import time
from collections import deque
from collections.abc import Callable

from typing_extensions import Self

from rose.clock import BootClock
from rose.transfer.manifest import Signing, StagedVersion
from rose.transfer.receiving.commit import Commit, CommitState
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.receiving.source import Source
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.replicas.member import ReplicaMember, ReplicaPause
from rose.transfer.replicas.rank import ReplicaRank
from rose.transfer.tiles import Tiles
from rose.transfer.version import Version
from rose.transfer.views import ShardViews

NAMELESS = Version("", 0, 0)
LONG_S = 200.0


class RankRig:
    """A rank over views; `on_step` is called for every step with the version that it ran on."""

    def __init__(
        self,
        source: Source,
        tiles: Tiles,
        places: dict,
        *,
        rank: int,
        incarnation: int,
        hold_s: float = 2.0,
        signing: Signing | None = None,
        wrap: Callable[[ShardViews], ShardViews] = lambda views: views,
        on_step: Callable[[Version], None] = lambda _version: None,
    ) -> None:
        self.rank, self.incarnation = rank, incarnation
        self.views = wrap(ShardViews(places))
        self.digests = self.views.digests()
        self.commit: Commit | None = None
        self.pauses: deque[ReplicaPause] = deque()
        self.states: list[CommitState] = []
        self.on_step = on_step
        self._bell = threading.Event()
        self._stop = threading.Event()
        machine = ReplicaRank(rank, incarnation, NAMELESS, hold_s=hold_s)
        self.member = ReplicaMember(machine, self._make_commit, self.ask_pause, clock=BootClock())
        self.receiver = Receiver(
            source,
            f"rank-{rank}",
            NAMELESS,
            self.digests.total,
            Subscription(tiles, places),
            self.member.look,
            signing=signing or Signing(),
            digests=self.digests.copy(),
            backoff_s=0.01,
            backoff_max_s=0.1,
            wait_s=0.1,
        )
        self._thread = threading.Thread(target=self._run, name=f"engine-{rank}")
        self.member.attach(
            self.receiver
        )  # It asks for the first pause, so no step comes before that.
        self._thread.start()

    def _make_commit(self, staged: StagedVersion, *, is_held: bool) -> Commit:
        if self.commit is not None:
            self.digests = self.commit.digests
        self.commit = Commit(
            staged,
            self.views,
            self.receiver.digest,
            digests=self.digests,
            subscribed=self.views.tiles,
            is_held=is_held,
        )
        return self.commit

    def ask_pause(self, pause: ReplicaPause) -> None:
        self.pauses.append(pause)
        self._bell.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self.pauses:
                self.on_step(self.member.held)
                self._bell.wait(0.002)
                self._bell.clear()
                continue
            pause = self.pauses.popleft()
            while pause.step():
                if self._stop.is_set():
                    pause.abandon()
            self.states.append(pause.state)

    def wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < until, (self.member.phase, self.member.held, self.states)
            time.sleep(0.005)

    def close(self) -> None:
        self._stop.set()
        self._bell.set()
        self._thread.join()
        self.receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
