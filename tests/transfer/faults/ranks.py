"""Two receivers as the ranks of one replica: in use at one version, or not in use."""

from collections import deque
from random import Random

from rose.transfer import Commit, CommitState, StagedVersion
from rose.transfer.digests import TileDigests
from rose.transfer.receiving.commit import Outcome
from rose.transfer.replicas.member import ReplicaMember, ReplicaPause
from rose.transfer.replicas.messages import Order, RankPhase, Word
from rose.transfer.replicas.rank import ReplicaRank, Todo
from rose.transfer.replicas.replica import ReplicaCommit
from rose.transfer.version import Version
from tests.transfer.faults.history import demand
from tests.transfer.faults.receiver import NAMELESS, Receiver
from tests.transfer.faults.shards import Bits, Killed

MESSAGES_MAX = 30


class _Feed:
    """A receiver as `ReplicaMember` wants one."""

    def __init__(self, rank: "Rank") -> None:
        self._rank = rank
        self._staging = rank.staging

    @property
    def held(self) -> Version:
        return self._staging.held.version

    @property
    def staged_version(self) -> Version | None:
        return self._staging.staged_version

    @property
    def unreachable(self) -> Version | None:
        return self._staging.unreachable

    def aim(self, version: Version | None, *, is_direct: bool = False) -> None:
        self._staging.aim(version, is_direct=is_direct)

    def take_staged(self) -> StagedVersion | None:
        return self._rank.take()

    def report(self, outcome: Outcome) -> None:
        self._rank.end(outcome)

    def drifted(self, digests: TileDigests) -> None:
        self._staging.drifted(digests)


class Rank(Receiver):
    """A receiver whose commits are its replica's; `joined` follows each `begin`."""

    pause: ReplicaPause | None = None
    member: ReplicaMember | None = None

    def begin(self, rng: Random, bits: Bits | None = None, held: Version = NAMELESS) -> None:
        super().begin(rng, bits, held)
        self.pause = None
        self.machine = ReplicaRank(self.number, self.life, self.staging.held.version)
        self.member = ReplicaMember(self.machine, self._made, self._asked, clock=self.clock)
        self.member.attach(_Feed(self))

    @property
    def number(self) -> int:
        return 0 if self.name == "left" else 1

    @property
    def is_in_use(self) -> bool:
        return self.machine.is_in_use and self.pause is None

    def staged_now(self) -> None:
        if self.member is not None:
            self.member.look()

    def step(self, slices: int) -> None:
        """Run slices of the pause, as long as there is something to do."""
        try:
            for _ in range(slices):
                if self.pause is None:
                    return
                self.member.look()
                is_at_work = self.commit is not None and self.commit.state is not (
                    CommitState.MATCHED
                )
                if self.machine.todo() is Todo.WAIT and not is_at_work:
                    return  # it would wait for others
                pause = self.pause
                if not pause.step() and self.pause is pause:  # else the next one has begun
                    self.pause = None
        except Killed:
            self.begin(Random(self.life))

    def abandon(self) -> None:
        """Only an engine that ends abandons a pause."""

    def order_of(self, version: Version) -> int:
        """Say that a rank may go back: to where the others of its replica are, while none runs."""
        return 0

    def _asked(self, pause: ReplicaPause) -> None:
        self.pause = pause

    def _made(self, staged: StagedVersion, *, is_held: bool) -> Commit:
        self.commit = self.commit_of(staged, is_held=is_held)
        return self.commit


class Replica:
    """The coordinator, and the messages between it and the ranks."""

    def __init__(self, ranks: list[Rank]) -> None:
        self._ranks = ranks
        self._number = 0
        self._known: dict[int, int] = {}  # lives of ranks that have joined
        self._words: deque[Word] = deque(maxlen=MESSAGES_MAX)
        self._orders: deque[tuple[int, int, Order]] = deque(maxlen=MESSAGES_MAX)
        self._machine: ReplicaCommit | None = None
        self.restart()

    def restart(self) -> None:
        """Let the coordinator die and another one begin."""
        for rank in self._ranks:
            rank.member.lost()
        self._number += 1
        self._known.clear()
        self._machine = ReplicaCommit(len(self._ranks), self._number)
        self.connect()

    def connect(self) -> None:
        """Let ranks that were started again join; a coordinator dies with rank 0."""
        now_ns = self._ranks[0].clock.now_ns()
        if self._known.get(0, self._ranks[0].life) != self._ranks[0].life:
            self.restart()
            return
        for at, rank in enumerate(self._ranks):
            if self._known.get(at) != rank.life:
                if at in self._known:
                    self._machine.lost(at, self._known[at], now_ns)
                self._machine.joined(at, rank.life, now_ns)
                self._known[at] = rank.life
                rank.member.met(self._number, self._words.append)

    def flow(self, rng: Random | None) -> None:
        """Carry messages, all in order, or some of them, some twice and in any order."""
        self.connect()
        now_ns = self._ranks[0].clock.now_ns()
        for rank in self._ranks:
            rank.member.look()
        for word in self._drawn(self._words, rng):
            self._machine.heard(word, now_ns)
        self._machine.tick(now_ns)
        for at, rank in enumerate(self._ranks):
            self._orders.append((at, rank.life, self._machine.order))
        for at, life, order in self._drawn(self._orders, rng):
            if self._ranks[at].life == life:
                self._ranks[at].member.hear(order)
        self.check()

    def check(self) -> None:
        """See that ranks that compute together have the same weights."""
        used = {rank.machine.held for rank in self._ranks if rank.is_in_use}
        demand(len(used) <= 1, f"ranks of one replica are in use at {sorted(map(str, used))}")
        for rank in self._ranks:
            demand(
                not (rank.is_in_use and rank.commit is not None), f"{rank.name} runs in a commit"
            )

    @property
    def is_in_use(self) -> bool:
        return all(rank.is_in_use for rank in self._ranks)

    @property
    def quarantined(self) -> list[Rank]:
        return [rank for rank in self._ranks if rank.machine.phase is RankPhase.QUARANTINED]

    def _drawn(self, queue: deque, rng: Random | None) -> list:
        if rng is None:
            drawn = list(queue)
            queue.clear()
            return drawn
        under_way = list(queue)
        if not under_way:
            return []
        drawn = rng.sample(under_way, rng.randint(1, len(under_way)))
        for one in drawn:
            if rng.random() < 0.8 and one in queue:  # else it comes again
                queue.remove(one)
        if rng.random() < 0.2:
            queue.clear()
        return drawn
