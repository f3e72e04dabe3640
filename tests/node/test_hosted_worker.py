"""One worker over engines that come and go: turns move, and epochs only rise."""

from msgspec.structs import replace

from rose.errors import Unavailable
from rose.node.hosted_worker import HostedWorker
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)
from tests.engines.recorder import turn

PROMPT = [1, 2, 3]


class Engine:
    """An engine's worker that does what a test says."""

    number, kind = 0, WorkerKind.BORROWED

    def __init__(self, on_event) -> None:
        self.tell = on_event
        self.started, self.stopped = [], []

    def start_turn(self, request) -> None:
        self.started.append(request)

    def stop_turn(self, trajectory: int) -> None:
        self.stopped.append(trajectory)

    def say(self, tokens: tuple[int, ...], end: TurnEnd | None = None, place: int = 0) -> None:
        asked = self.started[place]
        where = asked.trajectory, asked.turn, asked.grant_epoch, asked.first_token
        rows = tokens, (0.0,) * len(tokens), (0,) * len(tokens)
        self.tell(TurnOutput(0, *where, *rows, end))


class World:
    def __init__(self) -> None:
        self.events, self.losses = [], []
        self.worker = HostedWorker(5, WorkerKind.BORROWED, self.events.append)

    def next_engine(self, kv_tokens: int = 100) -> Engine:
        engine = Engine(self.worker.events_of(self.losses.append))
        self.worker.use(engine)
        engine.tell(GrantChanged(5, 1, kv_tokens, 0.0))
        return engine


def test_turns_of_a_lost_engine_are_interrupted_after_their_last_token() -> None:
    world = World()
    first = world.next_engine()
    for trajectory in range(3):
        world.worker.start_turn(turn(trajectory, PROMPT, 9, first_token=trajectory))
    first.say((7, 8))
    first.say((9,), TurnEnd.FINISHED, place=1)
    del world.events[:]
    first.tell(WorkerLost(0, "serving has gone"))
    assert world.losses == ["serving has gone"]
    *turns, grant = world.events
    assert [(one.trajectory, one.first_token, one.end) for one in turns] == [
        (0, 2, TurnEnd.INTERRUPTED),
        (2, 2, TurnEnd.INTERRUPTED),
    ]
    assert grant == GrantChanged(5, 1, 0, 0.0)


def test_the_next_engine_continues_the_epochs() -> None:
    world = World()
    first = world.next_engine()
    first.tell(GrantChanged(5, 2, 50, 9.0))
    first.tell(WorkerLost(0, "gone"))
    second = world.next_engine(70)
    assert world.events[-2:] == [GrantChanged(5, 2, 0, 0.0), GrantChanged(5, 3, 70, 0.0)]
    request = turn(1, PROMPT, 9, grant_epoch=3)
    world.worker.start_turn(request)
    assert second.started == [replace(request, grant_epoch=1)]
    second.say((4,), TurnEnd.FINISHED)
    assert world.events[-1].grant_epoch == 3
    world.worker.stop_turn(1)
    assert second.stopped == [1]
    second.tell(VersionCommitted(5, 2, True, 1.0))
    assert world.events[-1] == VersionCommitted(5, 2, True, 1.0)


def test_a_turn_of_an_old_epoch_or_without_an_engine_is_interrupted_at_once() -> None:
    world = World()
    first = world.next_engine()
    first.tell(WorkerLost(0, "gone"))
    world.worker.start_turn(turn(1, PROMPT, 9))
    second = world.next_engine()
    world.worker.start_turn(turn(2, PROMPT, 9))
    world.worker.stop_turn(9)
    ends = [one for one in world.events if isinstance(one, TurnOutput)]
    assert [(one.trajectory, one.grant_epoch, one.end) for one in ends] == [
        (1, 1, TurnEnd.INTERRUPTED),
        (2, 1, TurnEnd.INTERRUPTED),
    ]
    assert second.started == []


def test_a_turn_that_the_engine_refuses_fails() -> None:
    world = World()
    engine = world.next_engine()

    def refuse(_request) -> None:
        raise Unavailable("no")

    engine.start_turn = refuse
    world.worker.start_turn(turn(1, PROMPT, 9))
    assert (world.events[-1].end, world.events[-1].error) == (TurnEnd.FAILED, "no")
    engine.tell(WorkerLost(0, "gone"))
    assert isinstance(world.events[-1], GrantChanged)  # The turn ended once.
