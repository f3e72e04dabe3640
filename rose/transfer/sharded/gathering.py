"""The publisher's side of sharded weights: who takes part, the plan, and the engines' barriers."""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rose.clock import Clock
from rose.errors import InvalidArgument
from rose.transfer.manifest import Manifest
from rose.transfer.plan import (
    Places,
    Plan,
    Replica,
    ShardMap,
    SourceRanks,
    TensorSpec,
    check_coverage,
    joined,
    make_plan,
    one_holder_each,
)
from rose.transfer.plan.files import ShardFile, places_to_json, shards_from_json, shards_to_json
from rose.transfer.publishing.log import VersionLog
from rose.transfer.sharded.barrier import Barrier, Verdict
from rose.transfer.sharded.shards import Shards
from rose.transfer.sharded.words import (
    ANSWER_S,
    Aim,
    Aimed,
    Answer,
    AskStep,
    AskTensors,
    Call,
    Join,
    Joined,
    Meet,
    Met,
    Stepped,
    Tensors,
    call_of,
    packed,
)
from rose.units import NS_PER_S

ENGINES_MAX: Final = 1024
# Results of updates that are kept for ranks which ask late.
STEPS_MAX: Final = 16

# Begins another incarnation with a plan; returns False if an update is in progress for too long.
Begin: TypeAlias = Callable[[Plan], bool]
_Sharding: TypeAlias = tuple[frozenset[object], frozenset[object]]


@dataclass(frozen=True, slots=True)
class Member:
    """A process that takes part as a rank."""

    session: str
    file: ShardFile
    address: str


@dataclass(slots=True)
class _Engine:
    ranks: int
    barrier: Barrier
    members: dict[int, Member] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[int, ...]:
        return _missing(self.members, self.ranks)


@dataclass(frozen=True, slots=True)
class PlanInUse:
    """A plan and its layout id, which takes long to compute."""

    plan: Plan
    layout: str


class Gathering:
    """Answers the calls of ranks. Any thread may call.

    The condition guards the fields; no call holds it while it plans. The lock is held while a plan
    is made, by one call at a time.

    Args:
        ranks: number of the trainer's ranks.
        log: log of the versions.
        begin: function that publishes by another plan.
        clock: clock of all waits.
    """

    def __init__(self, ranks: int, log: VersionLog, begin: Begin, *, clock: Clock) -> None:
        self.epoch: Final = secrets.token_hex(8)
        self._ranks, self._log, self._begin, self._clock = ranks, log, begin, clock
        self._changed = threading.Condition()
        self._planning = threading.Lock()
        self._sources: dict[int, Member] = {}
        self._engines: dict[str, _Engine] = {}
        self._shardings: dict[_Sharding, Replica] = {}
        self._planned: PlanInUse | None = None
        self._step = -1  # number of the last finished update
        self._steps: dict[int, Stepped] = {}
        self._failure: InvalidArgument | None = None  # why the trainer cannot publish

    # ---- the publisher's side

    def missing_sources(self, wait_s: float) -> tuple[int, ...]:
        """Wait for the trainer's ranks; return those that have not joined.

        Raises:
            InvalidArgument: a rank has other tensors than rank 0.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._missing, wait_s)
            if self._failure is not None:
                raise self._failure
            return self._missing

    def fail(self, error: InvalidArgument) -> None:
        """Refuse all ranks of the trainer, unless it publishes already."""
        with self._changed:
            if self._planned is None:
                self._failure = error
                self._changed.notify_all()

    def first_plan(self) -> Plan:
        """Return the plan of the trainer's shards alone.

        Raises:
            InvalidArgument: the ranks together do not hold every element.
        """
        return make_plan(self._source(), ())

    def sources(self) -> dict[int, Member]:
        """Return the trainer's ranks."""
        with self._changed:
            return dict(self._sources)

    def plan_is(self, plan: Plan) -> PlanInUse:
        """Give ranks this plan from now on."""
        planned = PlanInUse(plan, plan.layout_id)
        with self._changed:
            self._planned = planned
            self._changed.notify_all()
        return planned

    def step_is(self, number: int, n: int, failure: str = "") -> None:
        """Record the result of an update."""
        with self._changed:
            self._step = number
            self._steps[number] = Stepped(self.epoch, True, n, failure)
            self._steps.pop(number - STEPS_MAX, None)
            self._changed.notify_all()

    @property
    def planned(self) -> PlanInUse | None:
        """Return the present plan; None before the first."""
        with self._changed:
            return self._planned

    def answer(self, content: bytes) -> bytes:
        """Answer a call within about `ANSWER_S`.

        Raises:
            InvalidArgument: the call does not fit what others have told.
        """
        return packed(self._answer(call_of(content)))

    def _answer(self, call: Call) -> Answer:
        match call:
            case AskTensors():
                return self._tensors()
            case Join(replica=""):
                return self.join_source(call)
            case Join():
                return self._join_engine(call)
            case Aim():
                return self._aim(call)
            case Meet():
                return self._meet(call)
            case AskStep():
                return self._step_of(call)

    # ---- the trainer's ranks

    def join_source(self, call: Join, *, waits: bool = True) -> Joined:
        """Accept a rank of the trainer, and return its part of the plan."""
        who = f"rank {call.rank} of the trainer"
        file = shards_from_json(call.shards, what=f"the shard map of {who}")
        try:
            self._check_source(call, file.shards, who)
        except InvalidArgument as error:
            self.fail(error)
            raise
        with self._changed:
            self._sources[call.rank] = Member(call.session, file, call.address)
            self._changed.notify_all()
            if waits:
                self._changed.wait_for(lambda: self._planned or self._failure, ANSWER_S)
            if self._failure is not None:
                raise self._failure
            missing, planned, step = self._missing, self._planned, self._step
        if missing or planned is None:
            return Joined(self.epoch, missing)
        return self._part(planned, planned.plan.sent_from(call.rank), step)

    def _check_source(self, call: Join, shards: ShardMap, who: str) -> None:
        if call.ranks != self._ranks or not 0 <= call.rank < self._ranks:
            raise InvalidArgument(
                f"{who} has {call.ranks} ranks, and rank 0 has {self._ranks}: give all ranks the "
                "same number"
            )
        with self._changed:
            first = self._sources.get(0)
            before = self._sources.get(call.rank)
        if first is None:
            return
        _check_same(first.file.shards.tensors, shards.tensors, who)
        if before is not None and frozenset(before.file.shards.pieces) != frozenset(shards.pieces):
            raise InvalidArgument(
                f"{who} was restarted with other shards: restart all ranks of the trainer"
            )

    @property
    def _missing(self) -> tuple[int, ...]:
        return _missing(self._sources, self._ranks)

    def _source(self) -> SourceRanks:
        with self._changed:
            maps = [self._sources[rank].file.shards for rank in sorted(self._sources)]
        return one_holder_each(joined(maps), cluster="trainer")

    def _tensors(self) -> Tensors:
        with self._changed:
            self._changed.wait_for(lambda: self._planned is not None, ANSWER_S)
            planned = self._planned
        if planned is None:
            return Tensors(self.epoch, b"")
        tensors = planned.plan.sources.shards.tensors
        ties = planned.plan.sources.ties  # a loader expects each name of a tied tensor
        tied = {
            name: TensorSpec(name, tensors[by].shape, tensors[by].dtype)
            for name, by in ties.items()
        }
        return Tensors(self.epoch, shards_to_json(ShardFile(ShardMap({**tensors, **tied}, (), {}))))

    def _step_of(self, call: AskStep) -> Stepped:
        with self._changed:
            self._changed.wait_for(lambda: call.number <= self._step, ANSWER_S)
            member = self._sources.get(call.rank)
            if member is not None and member.session != call.session:
                raise InvalidArgument(f"another process is rank {call.rank} of the trainer")
            if call.number > self._step:
                return Stepped(self.epoch, False, 0)
            forgotten = Stepped(self.epoch, True, 0, f"update {call.number} is long over")
            return self._steps.get(call.number, forgotten)

    # ---- engines

    def _join_engine(self, call: Join) -> Joined:
        who = f"rank {call.rank} of {call.replica}"
        Shards(call.rank, call.ranks)  # checks the numbers
        file = shards_from_json(call.shards, what=f"the shard map of {who}")
        if any(piece.rank != call.rank for piece in file.shards.pieces):
            raise InvalidArgument(f"the shard map of {who} has pieces of another rank")
        with self._changed:
            engine = self._engine_named(call)
            engine.members[call.rank] = Member(call.session, file, "")
            engine.barrier.join(call.rank, call.session)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._planned and not engine.missing, ANSWER_S)
            missing, members = engine.missing, dict(engine.members)
            if missing or self._planned is None:
                return Joined(self.epoch, missing)
        found = self._plan_for(call.replica, [members[rank].file for rank in sorted(members)])
        if found is None:
            return Joined(self.epoch)
        planned, name = found
        return self._part(planned, planned.plan.places(name, call.rank), self._step)

    def _engine_named(self, call: Join) -> _Engine:
        """Return an engine; one that comes back with another number of ranks is another engine."""
        engine = self._engines.get(call.replica)
        if engine is None or engine.ranks != call.ranks:
            if engine is None and len(self._engines) >= ENGINES_MAX:
                raise InvalidArgument(f"at most {ENGINES_MAX} engines can have a name")
            barrier = Barrier(call.replica, call.ranks, clock=self._clock)
            engine = self._engines[call.replica] = _Engine(call.ranks, barrier)
        return engine

    def _plan_for(self, name: str, files: Sequence[ShardFile]) -> tuple[PlanInUse, str] | None:
        """Return a plan with these shards, and the name of the replica in it; None: ask again."""
        shards = joined(one.shards for one in files)
        known: _Sharding = (frozenset(shards.pieces), frozenset(shards.tensors.values()))
        if not self._planning.acquire(timeout=ANSWER_S):
            return None
        try:
            planned = self.planned
            if planned is None:
                return None
            if known not in self._shardings:
                sizes = {at: size for one in files for at, size in (one.sizes or {}).items()}
                buffers = {parameter for one in files for parameter in one.buffers}
                check_coverage(shards, storages=sizes or None, buffers=buffers)
                used = {one.name for one in self._shardings.values()}
                unique = name if name not in used else f"{name} ({len(used)})"
                replica = Replica(unique, "engines", shards)
                plan = make_plan(planned.plan.sources, [*self._shardings.values(), replica])
                if plan.layout_id == planned.layout:
                    planned = self.plan_is(plan)
                elif not self._begin(plan):
                    return None
                self._shardings[known] = replica
            now = self.planned
            return (planned if now is None else now), self._shardings[known].name
        finally:
            self._planning.release()

    def _part(self, planned: PlanInUse, places: Places, step: int) -> Joined:
        content = places_to_json(planned.plan, places)
        return Joined(self.epoch, (), planned.layout, content, step)

    def _aim(self, call: Aim) -> Aimed:
        if call.epoch != self.epoch:
            return Aimed(self.epoch, "", None)
        barrier = self._barrier(call)
        until_ns = self._clock.now_ns() + int(min(call.wait_s, ANSWER_S) * NS_PER_S)
        gone = call.gone
        while True:
            layout, newest_n, offers = self._offers()
            target = barrier.target(call.rank, call.session, offers, gone=gone)
            left_s = (until_ns - self._clock.now_ns()) / NS_PER_S
            if left_s <= 0 or (target is not None and target.n > call.after_n):
                return Aimed(self.epoch, layout, target)
            gone = None
            self._log.wait_manifests(newest_n, left_s)

    def _offers(self) -> tuple[str, int, list[Manifest]]:
        """Return the present layout, the log's newest number, and the updates of the layout."""
        planned = self.planned
        layout = "" if planned is None else planned.layout
        every = self._log.wait_manifests(-1, 0)
        newest_n = max((one.version.n for one in every), default=-1)
        return layout, newest_n, [one for one in every if one.layout == layout]

    def _meet(self, call: Meet) -> Met:
        if call.epoch != self.epoch:
            return Met(self.epoch, Verdict.UNDO, 0, "")
        barrier = self._barrier(call)
        who = call.rank, call.session
        if call.number is not None:
            ruling = barrier.done(*who, call.number, failure=call.failure, wait_s=ANSWER_S)
        elif call.failure:
            ruling = barrier.refuse(*who, call.failure)
        else:
            _, _, offers = self._offers()
            ruling = barrier.ready(
                *who, call.version, offers, within_s=call.within_s, wait_s=ANSWER_S
            )
        return Met(self.epoch, ruling.verdict, ruling.number, ruling.reason)

    def _barrier(self, call: Aim | Meet) -> Barrier:
        with self._changed:
            engine = self._engines.get(call.replica)
        if engine is None:
            raise InvalidArgument(f"{call.replica} has not joined this publisher")
        return engine.barrier


def _missing(members: dict[int, Member], ranks: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(ranks) if rank not in members)


def _check_same(first: Mapping[str, TensorSpec], own: Mapping[str, TensorSpec], who: str) -> None:
    """Compare a rank's tensors with those of rank 0."""
    for name in [*first, *own]:
        here, there = own.get(name), first.get(name)
        if here != there:
            raise InvalidArgument(
                f"{who} has {_words(here, name)}, and rank 0 has {_words(there, name)}: pass the "
                "same model on all ranks"
            )


def _words(spec: TensorSpec | None, name: str) -> str:
    return f"no {name}" if spec is None else f"{name} as {spec.dtype} of shape {spec.shape}"
