"""The books of which worker ran which part of a turn."""

from dataclasses import dataclass

from rose.demo.rl.parts import Part, Parts
from rose.scheduler.events import DropReason
from rose.scheduler.state import Gone
from rose.scheduler.turns import TurnResult
from rose.scheduler.worker import TurnRequest, WorkerKind

DEDICATED, BORROWED = WorkerKind.DEDICATED, WorkerKind.BORROWED


@dataclass
class TickingClock:
    now: int = 0

    def now_ns(self) -> int:
        self.now += 1
        return self.now

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def request(trajectory: int, *, turn: int = 0, first_token: int = 0) -> TurnRequest:
    return TurnRequest(trajectory, turn, 1, (2, 65, 3), first_token, 8, (1,), 1.0, 0)


def end(parts: Parts, trajectory: int) -> None:
    parts.stepped([TurnResult(trajectory, 0, (), (), (), (), is_cut=False)])


def test_a_turn_that_moves_has_two_parts_with_their_own_tokens() -> None:
    parts = Parts(TickingClock())
    parts.begin(request(7), 0, BORROWED)
    parts.add(7, 2)
    parts.end(7, 0)
    parts.add(7, 1)  # Late tokens are of the part that said them.
    parts.begin(request(7, first_token=3), 1, DEDICATED)
    parts.add(7, 4)
    parts.end(7, 1)
    end(parts, 7)
    assert parts.done() == [
        Part(7, 0, 0, BORROWED, start_ns=1, end_ns=2, tokens=3, is_resumed=False),
        Part(7, 0, 1, DEDICATED, start_ns=3, end_ns=4, tokens=4, is_resumed=True),
    ]
    assert parts.resumed == 1


def test_resumed_counts_trajectories_and_not_how_often() -> None:
    parts = Parts(TickingClock())
    for trajectory in (1, 2):
        for first_token in (0, 3, 5):
            parts.begin(request(trajectory, first_token=first_token), 0, BORROWED)
    parts.begin(request(3), 0, BORROWED)
    parts.begin(request(3), 1, BORROWED)  # It had said nothing yet.
    assert parts.resumed == 2


def test_the_end_of_another_worker_ends_no_part() -> None:
    parts = Parts(TickingClock())
    parts.begin(request(7), 0, BORROWED)
    parts.begin(request(7, first_token=1), 1, DEDICATED)
    parts.end(7, 0)
    parts.end(7, 1)
    parts.end(7, 1)  # Nor a second time.
    parts.end(8, 1)  # Nor one that there is not.
    end(parts, 7)
    first, second = parts.done()
    # The first was never said to end: it did when the next began.
    assert (first.end_ns, second.start_ns, second.end_ns) == (2, 3, 4)


def test_a_lost_worker_ends_its_parts_and_no_other() -> None:
    clock = TickingClock()
    parts = Parts(clock)
    for trajectory, worker in ((1, 0), (2, 1), (3, 0)):
        parts.begin(request(trajectory), worker, BORROWED)
    parts.end_all(0)
    clock.now = 100
    for trajectory in (1, 2, 3):
        end(parts, trajectory)
    assert [part.end_ns for part in parts.done()] == [4, 101, 5]


def test_a_part_is_put_away_once() -> None:
    parts = Parts(TickingClock())
    parts.begin(request(7), 0, BORROWED)
    end(parts, 7)
    parts.stepped([Gone(7, DropReason.FAILED)])
    assert len(parts.done()) == 1
