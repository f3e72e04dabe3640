"""A trainer, its links and its receivers in virtual time, driven by a script."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from rose.transfer.relaying.relay_set import BACKOFF_MAX_S, RelaySet
from rose.transfer.source import Source
from rose.units import NS_PER_S
from tests.transfer.faults.history import History, demand
from tests.transfer.faults.receiver import NAMELESS, Receiver
from tests.transfer.faults.relays import RelayEnd, RelayKilled, RelayProcess
from tests.transfer.faults.script import Event
from tests.transfer.faults.shards import EVERY, SHARES, Killed
from tests.transfer.faults.trainer import SIGNING, Trainer
from tests.transfer.faults.wire import FAULTS, Wire

DEPTH_MAX: Final = 3
# Rounds of each receiver until it must be there, once nothing goes wrong any more.
QUIET_ROUNDS_MAX: Final = 100


class World:
    """One run.

    Args:
        seed: draws what is there to begin with.
        is_plain: without relays, which are a further guard.
    """

    def __init__(self, seed: int, *, is_plain: bool = False) -> None:
        rng = Random(seed ^ 0x5EED)
        self._rng = rng
        self.now_s = 0.0
        self._pending: deque[Event] = deque()
        self._depth = 0
        # What happened, for whoever compares two runs.
        self.log: list[object] = []
        self.history = History()
        self.trainer = Trainer(self.history, rng)
        self.relays: list[RelayProcess] = []
        self.uplinks: list[Wire] = []
        for at in range(0 if is_plain else rng.choice((0, 1, 2, 2))):
            wire = self._wire(self._publisher, lambda at=at: self.relays[at].life, RelayKilled)
            wire.is_honest = True
            self.uplinks.append(wire)
            self.relays.append(RelayProcess(wire, rng))
        self.wires: dict[str, list[Wire]] = {}
        self.receivers: dict[str, Receiver] = {}
        for name in SHARES:
            self._connect(name, rng)

    def _connect(self, name: str, rng: Random) -> None:
        """Make a receiver, with a link to each relay, or to the publisher where there is none."""

        def life() -> int:
            return self.receivers[name].life if name in self.receivers else 0

        ends = [RelayEnd(lambda one=one: one.relay) for one in self.relays]
        uppers = [lambda end=end: end for end in ends] or [self._publisher]
        self.wires[name] = [self._wire(upper, life, Killed) for upper in uppers]
        source: Source = self.wires[name][0]
        if self.relays:
            landing = {tile: rng.randrange(len(self.relays)) for tile in EVERY}
            source = RelaySet(
                self.wires[name],
                landing,
                signing=SIGNING,
                clock=self,
                on_liar=lambda relay, what: self.log.append((name, relay, what)),
            )
        self.receivers[name] = Receiver(
            name, source, self.history, signing=SIGNING, clock=self, rng=rng
        )

    def _wire(
        self, upstream: Callable[[], Source | None], life: Callable[[], int], kind: type[Killed]
    ) -> Wire:
        return Wire(upstream, self.history, self._before(life, kind), self.sleep)

    def now_ns(self) -> int:
        """Return the virtual time, as a clock does."""
        return int(self.now_s * NS_PER_S)

    def sleep(self, seconds: float) -> None:
        """Let virtual seconds pass; nobody waits for them."""
        self.now_s += seconds

    def run(self, events: Sequence[Event]) -> None:
        """Do what the script says, then let everything be well until all is quiet."""
        self._pending.extend(events)
        while self._pending:
            self._do(self._pending.popleft())
        self.settle()

    # ---- the script

    def _do(self, event: Event) -> None:
        rng = Random(event.number)
        receiver = self.receivers[event.who]
        if event.kind in FAULTS:
            links = [*self.wires[event.who], *self.uplinks]
            links[event.number % len(links)].arm(event.kind, event.number)
        else:
            self._depth += 1
            _DO[event.kind](self, receiver, rng)
            self._depth -= 1
        self.trainer.check()
        for one in self.receivers.values():
            one.check()
        self.log.append((event, self.trainer.version, *map(_place, self.receivers.values())))

    def _publish(self, _: Receiver, rng: Random) -> None:
        if self.trainer.life is None:
            self.trainer.start(rng)
        else:
            self.trainer.publish(rng)

    def _fail_to_publish(self, _: Receiver, rng: Random) -> None:
        self.trainer.publish(rng, "refuse")

    def _interrupt(self, _: Receiver, rng: Random) -> None:
        self.trainer.publish(rng, "interrupt")

    def _kill_trainer(self, _: Receiver, rng: Random) -> None:
        how = rng.choice((None, "killed", "killed late"))
        if how is None:
            self.trainer.kill()
        else:
            self.trainer.publish(rng, how)

    def _merge(self, _: Receiver, rng: Random) -> None:
        self.trainer.merge(rng)

    def _relay_round(self, _: Receiver, rng: Random) -> None:
        if self.relays:
            relay = rng.choice(self.relays)
            if relay.relay is None:
                relay.start()
            relay.round()

    def _kill_relay(self, _: Receiver, rng: Random) -> None:
        if self.relays:
            rng.choice(self.relays).kill()

    def _fail_disk(self, _: Receiver, rng: Random) -> None:
        if self.relays:
            rng.choice(self.relays).fail_disk(rng)

    def _rot_disk(self, _: Receiver, rng: Random) -> None:
        if self.relays:
            rng.choice(self.relays).rot_disk(rng)

    def _round(self, receiver: Receiver, _: Random) -> None:
        receiver.round()

    def _commit(self, receiver: Receiver, rng: Random) -> None:
        receiver.step(rng.randint(1, 12))

    def _stage_and_commit(self, receiver: Receiver, _: Random) -> None:
        receiver.round()
        receiver.round()
        receiver.step(1 << 10)

    def _scrub(self, receiver: Receiver, _: Random) -> None:
        receiver.scrub()

    def _fail(self, receiver: Receiver, rng: Random) -> None:
        receiver.fail(rng)

    def _corrupt(self, receiver: Receiver, rng: Random) -> None:
        receiver.corrupt(rng)

    def _abandon(self, receiver: Receiver, _: Random) -> None:
        receiver.abandon()

    def _kill_receiver(self, receiver: Receiver, rng: Random) -> None:
        # Its weights outlive it, perhaps half changed, with or without a name that was noted
        # before; or they are those of the first checkpoint again.
        if rng.random() < 0.3:
            receiver.begin(rng, self.trainer.opening)
        else:
            receiver.begin(rng, held=receiver.last if rng.random() < 0.5 else NAMELESS)

    # ---- what links ask of the world

    def _publisher(self) -> Source | None:
        demand(not self.trainer.is_publishing, "a publisher waited for a receiver")
        life = self.trainer.life
        return None if life is None else life.source

    def _before(self, life: Callable[[], int], kind: type[Killed]) -> Callable[[], None]:
        def before() -> None:
            at_first = life()
            if self._pending and self._pending[0].is_inside and self._depth < DEPTH_MAX:
                self._do(self._pending.popleft())
            if life() != at_first:
                raise kind

        return before

    # ---- the end

    def settle(self) -> None:
        """Mend everything, and see that every receiver comes to the newest version."""
        for wire in (*self.uplinks, *(one for some in self.wires.values() for one in some)):
            wire.repair()
        for relay in self.relays:
            if relay.disk is not None:
                relay.disk.repair()
        for receiver in self.receivers.values():
            receiver.memory.faults.clear()
            receiver.step(1 << 10)
        for relay in self.relays:
            if relay.relay is None:
                relay.start()
        if self.trainer.life is None:
            self.trainer.start(self._rng)
        # Once more, for a receiver that waits for another version than one it could not commit.
        self.trainer.publish(self._rng)
        for _ in range(QUIET_ROUNDS_MAX):
            if self._is_quiet():
                break
            self._go_on()
        for receiver in self.receivers.values():
            newest = self.trainer.version
            demand(receiver.version == newest, f"{receiver.name} stays at {receiver.version}")
            demand(not receiver.corrupted, f"{receiver.name} is still corrupted")
            receiver.check()

    def _is_quiet(self) -> bool:
        return all(
            one.version == self.trainer.version and not one.corrupted
            for one in self.receivers.values()
        )

    def _go_on(self) -> None:
        """Let everybody do what there is to do, once."""
        is_left_out = False
        for relay in self.relays:
            relay.round()
        for receiver in self.receivers.values():
            if receiver.is_quarantined:  # as whoever looks after the programs would
                receiver.begin(self._rng)
            receiver.scrub()  # again, since weights may rot between a landing and the first commit
            trouble = receiver.round()
            is_waiting = trouble is not None and bool(self.relays)
            is_left_out |= is_waiting
            demand(
                trouble is None or is_waiting,
                f"{receiver.name} is in trouble when all is well: {trouble}",
            )
        for _ in range(3):
            for receiver in self.receivers.values():
                receiver.step(1 << 10)
                receiver.check()
        for receiver in self.receivers.values():
            receiver.scrub()  # of tiles that landed nothing but a scrub sees what flips later
        # A relay that failed or lied before is left out for a while.
        self.sleep(BACKOFF_MAX_S if is_left_out else 1.0)


def _place(receiver: Receiver) -> tuple[object, ...]:
    return receiver.staging.state, receiver.version, receiver.staging.stats


_DO: Final[dict[str, Callable[[World, Receiver, Random], None]]] = {
    "publish": World._publish,
    "refuse": World._fail_to_publish,
    "interrupt": World._interrupt,
    "kill trainer": World._kill_trainer,
    "merge": World._merge,
    "relay": World._relay_round,
    "kill relay": World._kill_relay,
    "fail disk": World._fail_disk,
    "rot disk": World._rot_disk,
    "scrub": World._scrub,
    "round": World._round,
    "commit": World._commit,
    "run": World._stage_and_commit,
    "fail": World._fail,
    "corrupt": World._corrupt,
    "abandon": World._abandon,
    "kill receiver": World._kill_receiver,
}


def failure_of(seed: int, events: Sequence[Event], *, is_plain: bool = False) -> str | None:
    """Return what goes wrong when a world of a seed does what a script says; None if nothing does.

    Numbers of tiles and versions are left out, so that a shorter script fails in the same way.
    """
    try:
        World(seed, is_plain=is_plain).run(events)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what was looked for)
        return f"{type(error).__name__}: {re.sub(r'[0-9]+', '#', str(error))}"
    return None
