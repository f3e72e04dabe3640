"""A replica without threads: messages lie around until somebody delivers, doubles or loses them."""

import random
from dataclasses import dataclass, field

from rose.transfer.replicas.messages import Order, Word
from rose.transfer.replicas.rank import ReplicaRank, Todo
from rose.transfer.replicas.replica import ReplicaCommit
from rose.transfer.version import Version
from rose.units import NS_PER_S

HOLD_S, APPLY_S = 5.0, 8.0


def version(n: int) -> Version:
    return Version("run", 1, n) if n >= 0 else Version("", 0, 0)


@dataclass
class Engine:
    """The engine and the receiver of one rank; `weights` is what its memory really holds."""

    rank: ReplicaRank
    incarnation: int
    weights: int
    lies_ready: int | None = None
    before: int | None = None  # what a commit that is under way goes back to
    slices: int = 0
    is_running: bool = False
    steps: list[int] = field(default_factory=list)


class ReplicaWorld:
    """Ranks, their coordinator, the versions there are, and all messages under way."""

    def __init__(self, count: int, seed: int, *, kept: int = 3) -> None:
        self.rng = random.Random(seed)
        self.count, self.kept = count, kept
        self.now_ns = 0
        self.newest = 0
        self.numbers = 0
        self.orders: list[tuple[int, int, Order]] = []  # rank, its incarnation
        self.words: list[Word] = []
        # Copies of what was said, to come again when nobody expects it.
        self.old_orders: list[tuple[int, int, Order]] = []
        self.old_words: list[Word] = []
        self.engines: dict[int, Engine] = {}
        self.coordinator: ReplicaCommit | None = None
        self.coordinator_number = 0
        self.failing: set[int] = set()
        for rank in range(count):
            self.start_rank(rank, 0)
        self.start_coordinator()

    # ---- processes

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def start_rank(self, rank: int, weights: int) -> None:
        number = self._number()
        made = ReplicaRank(rank, number, version(weights), hold_s=HOLD_S)
        self.engines[rank] = Engine(made, number, weights)
        if self.coordinator is not None:
            made.met(self.coordinator_number)
            self.coordinator.joined(rank, number, self.now_ns)

    def kill_rank(self, rank: int) -> None:
        dead = self.engines.pop(rank, None)
        if dead is not None and self.coordinator is not None:
            self.coordinator.lost(rank, dead.incarnation, self.now_ns)

    def start_coordinator(self) -> None:
        self.coordinator_number = self._number()
        self.coordinator = ReplicaCommit(self.count, self.coordinator_number, apply_s=APPLY_S)
        for rank, engine in self.engines.items():
            engine.rank.met(self.coordinator_number)
            self.coordinator.joined(rank, engine.incarnation, self.now_ns)

    def kill_coordinator(self) -> None:
        self.coordinator = None
        for engine in self.engines.values():
            engine.rank.lost()

    # ---- messages

    def say(self, *, is_lossy: bool) -> None:
        """Let everybody say where he is."""
        for rank, engine in self.engines.items():
            if (word := engine.rank.word()) is not None:
                self.words.append(word)
            if self.coordinator is not None:
                self.orders.append((rank, engine.incarnation, self.coordinator.order))
        if is_lossy:
            self.old_words = [*self.old_words, *self.words[-4:]][-60:]
            self.old_orders = [*self.old_orders, *self.orders[-4:]][-60:]
            self.words = self.words[-40:]
            self.orders = self.orders[-40:]

    def deliver_word(self, index: int) -> None:
        word = self.words.pop(index)
        if self.coordinator is not None:
            self.coordinator.heard(word, self.now_ns)

    def deliver_order(self, index: int) -> None:
        rank, incarnation, order = self.orders.pop(index)
        engine = self.engines.get(rank)
        if engine is not None and engine.incarnation == incarnation:
            engine.rank.ordered(order, self.now_ns)

    def echo(self, where: int) -> None:
        """Let something old come once more."""
        if where % 2 and self.old_words:
            self.words.append(self.old_words[where % len(self.old_words)])
            self.deliver_word(-1)
        elif self.old_orders:
            self.orders.append(self.old_orders[where % len(self.old_orders)])
            self.deliver_order(-1)

    def flow(self, where: int) -> None:
        """Let all go well for a while, but not for the same while for all ranks."""
        self.say(is_lossy=True)
        while self.words:
            self.deliver_word(0)
        self.say(is_lossy=True)
        while self.orders:
            self.deliver_order(0)
        for rank in self.engines:
            if (where >> rank) % 4:
                self.stage(rank)
                self.look(rank)
                self.check()

    def tick(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_S)
        for engine in self.engines.values():
            engine.rank.tick(self.now_ns)
        if self.coordinator is not None:
            self.coordinator.tick(self.now_ns)

    # ---- the receiver and the engine of a rank

    def stage(self, rank: int) -> None:
        """Do what `Staging` does: toward the aim, or some newer version if there is none."""
        engine = self.engines[rank]
        if engine.before is not None:
            return
        aim, is_direct = engine.rank.aim
        ready = engine.lies_ready
        if aim is not None:
            if ready is not None and (ready > aim.n or (is_direct and ready != aim.n)):
                ready = None
            unreachable = None
            if ready is None and engine.weights != aim.n:
                if aim.n <= self.newest - self.kept:
                    unreachable = aim
                elif engine.weights < aim.n:
                    low = aim.n if is_direct else engine.weights + 1
                    ready = self.rng.randint(low, aim.n)
                else:
                    ready = aim.n
        else:
            unreachable = None
            if ready is None and engine.weights < self.newest:
                ready = self.rng.randint(engine.weights + 1, self.newest)
                if ready <= self.newest - self.kept:
                    ready = self.newest
        engine.lies_ready = ready
        engine.rank.staged(None if ready is None else version(ready), unreachable)

    def look(self, rank: int) -> None:
        """Let the engine's thread do one slice of what it is to do."""
        engine = self.engines[rank]
        todo = engine.rank.todo()
        engine.is_running = todo is Todo.RUN
        if todo is Todo.RUN:
            engine.steps.append(engine.weights)
        elif todo in {Todo.TAKE, Todo.TAKE_ALONE}:
            self._take(engine)
        elif todo is Todo.KEEP:
            engine.before = None
            self._end(engine, is_kept=True)
        elif todo is Todo.ABANDON:
            self._go_back(engine)
        elif engine.before is not None and engine.slices > 0:
            engine.slices -= 1
            if engine.slices == 0:
                self._match(rank, engine)

    def _take(self, engine: Engine) -> None:
        ready, engine.lies_ready = engine.lies_ready, None
        engine.rank.took(None if ready is None else version(ready))
        if engine.rank.todo() is Todo.WAIT and ready is not None and engine.rank._is_taken:
            engine.before, engine.weights = engine.weights, ready
            engine.slices = self.rng.randint(1, 3)

    def _match(self, rank: int, engine: Engine) -> None:
        if rank in self.failing:
            self._go_back(engine, is_fault=True)
            return
        engine.rank.matched()
        if engine.rank._is_alone:
            engine.before = None
            self._end(engine, is_kept=True)

    def _go_back(self, engine: Engine, *, is_fault: bool = False) -> None:
        assert engine.before is not None
        engine.weights, engine.before = engine.before, None
        self._end(engine, is_kept=False, is_fault=is_fault)

    def _end(self, engine: Engine, *, is_kept: bool, is_fault: bool = False) -> None:
        engine.rank.ended(version(engine.weights), is_kept=is_kept, is_fault=is_fault)

    # ---- what must hold

    def check(self) -> None:
        running = {one.weights for one in self.engines.values() if one.is_running}
        assert len(running) <= 1, {rank: one.weights for rank, one in self.engines.items()}
        for one in self.engines.values():
            assert not (one.is_running and one.before is not None), "it runs on what is held"
            if one.before is None:
                assert one.rank.held == version(one.weights)

    def fall_silent(self) -> None:
        """Let no message arrive for as long as a rank may hold; nobody holds any more then."""
        self.tick(HOLD_S)
        for rank, engine in self.engines.items():
            for _ in range(5):
                self.look(rank)
            assert engine.before is None, engine.rank.word()

    def settle(self) -> None:
        """Let the world run without faults until the replica is in use at the newest version."""
        for rank in range(self.count):
            if rank not in self.engines:
                self.start_rank(rank, 0)
        if self.coordinator is None:
            self.start_coordinator()
        self.failing.clear()
        for _ in range(400):
            self.say(is_lossy=False)
            while self.words:
                self.deliver_word(0)
            self.say(is_lossy=False)
            while self.orders:
                self.deliver_order(0)
            for rank in range(self.count):
                self.stage(rank)
                self.look(rank)
            self.check()
            self.tick(0.05)
            if all(one.is_running and one.weights == self.newest for one in self.engines.values()):
                return
        raise AssertionError(
            f"newest {self.newest}, {self.coordinator and self.coordinator.order}, "
            + ", ".join(str(one.rank.word()) for one in self.engines.values())
        )
