"""What a report says happened is what workers and receivers said."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from rose.demo.rl.circle import NotedSource
from rose.demo.rl.history import History, Part, Parts, SeenCommit, SeenVersion
from rose.scheduler.events import DropReason
from rose.scheduler.front_events import Registered
from rose.scheduler.state import Gone
from rose.scheduler.turns import Capabilities, TurnResult
from rose.scheduler.worker import (
    LeaseChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.version import Version
from rose.units import NS_PER_S

DEDICATED, BORROWED = WorkerKind.DEDICATED, WorkerKind.BORROWED


class Clock:
    now_s = 0.0

    def now_ns(self) -> int:
        return round(self.now_s * NS_PER_S)

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError


class Book:
    """A history of a borrowed worker 0 and a dedicated worker 1."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.history = History(self.clock)
        self.register(0, BORROWED)
        self.register(1, DEDICATED)

    def register(self, worker: int, kind: WorkerKind) -> None:
        self.history.heard(Registered(worker, kind, Capabilities(1, 1.0, 1.0)))

    def hear(self, at_s: float, event) -> None:
        self.clock.now_s = at_s
        self.history.heard(event)

    def lease(self, at_s: float, kv_tokens: int, *, worker: int = 0) -> None:
        self.hear(at_s, LeaseChanged(worker, 1, kv_tokens, 100.0))


@pytest.fixture
def book() -> Book:
    return Book()


def output(worker: int, tokens: int, end: TurnEnd | None = None) -> TurnOutput:
    return TurnOutput(
        worker, 5, 0, 1, 0, (65,) * tokens, (-1.0,) * tokens, (0,) * tokens, end
    )  # fmt: skip


def manifest(n: int, *, base: int | None, changed: tuple[int, ...] = ()) -> Manifest:
    chunks = tuple(
        Chunk(tile, nbytes=10 * many, changed=many, sha256=bytes(32), digest=(0, 0))
        for tile, many in enumerate(changed)
    )
    base_version = None if base is None else Version("run", 0, base)
    return Manifest(Version("run", 0, n), base_version, (n, n), (0, 0), "0" * 64, 2, 200, chunks)


def test_a_span_is_from_a_grant_to_the_revocation_after_it(book) -> None:
    book.lease(1, 500)
    assert book.history.is_granted
    book.lease(2, 500)  # renewed
    book.lease(3, 200)  # shrunk
    book.lease(4, 0)
    assert not book.history.is_granted
    book.lease(5, 0)
    book.lease(6, 500)
    book.clock.now_s = 9
    assert book.history.spans() == ((1, 4), (6, 9))  # The last is not over.
    book.lease(10, 0)
    assert book.history.spans() == ((1, 4), (6, 10))


def test_the_lease_of_a_dedicated_worker_is_no_span(book) -> None:
    book.lease(1, 500, worker=1)
    assert not book.history.is_granted
    assert book.history.spans() == ()


def test_the_lease_of_a_borrowed_worker_that_is_lost_is_over(book) -> None:
    book.lease(1, 500)
    book.hear(2, WorkerLost(1, "killed"))
    assert book.history.is_granted
    book.hear(3, WorkerLost(0, "its engine died"))
    assert not book.history.is_granted
    book.clock.now_s = 9
    assert book.history.spans() == ((1, 3),)


def test_commits_are_kept_in_order_and_one_that_went_back_is_an_incident(book) -> None:
    book.hear(1, VersionCommitted(0, 3, True, 2.5))
    book.hear(2, VersionCommitted(1, 3, False, 4.0))
    assert book.history.commits == (
        SeenCommit(BORROWED, 1, 3, 2.5, is_match=True),
        SeenCommit(DEDICATED, 2, 3, 4.0, is_match=False),
    )
    ((at_s, sentence),) = book.history.incidents
    assert at_s == 2
    assert sentence == "dedicated worker could not take a version; it is at 3"


def test_a_lost_worker_is_an_incident_among_the_others(book) -> None:
    book.clock.now_s = 1
    book.history.incident("trainer died: killed")
    book.hear(2, WorkerLost(1, "no sign of life"))
    assert book.history.incidents == (
        (1, "trainer died: killed"),
        (2, "dedicated worker lost: no sign of life"),
    )


def test_a_worker_that_nobody_knows_has_said_nothing(book) -> None:
    book.hear(1, WorkerLost(7, "whoever it is"))
    book.hear(1, output(7, 3))
    assert book.history.incidents == ()


def test_tokens_are_counted_by_kind(book) -> None:
    book.register(2, DEDICATED)  # The next incarnation.
    book.hear(1, output(0, 3))
    book.hear(1, output(1, 5))
    book.hear(1, output(2, 7))
    book.hear(1, output(0, 0, TurnEnd.FINISHED))
    assert (book.history.tokens(BORROWED), book.history.tokens(DEDICATED)) == (3, 12)


def test_a_version_is_noted_once_whole_and_once_as_a_change(book) -> None:
    history = book.history
    history.version(manifest(5, base=5))  # Says what is there.
    book.clock.now_s = 1
    history.version(manifest(4, base=3, changed=(2, 5)))
    book.clock.now_s = 2
    history.version(manifest(3, base=2, changed=(1,)))
    history.version(manifest(4, base=3, changed=(2, 5)))  # Heard of again.
    history.version(manifest(4, base=None, changed=(60, 50)))
    assert history.versions == (
        SeenVersion(3, 2, is_seed=False, changed=1, count=200, nbytes=10),
        SeenVersion(4, 1, is_seed=False, changed=7, count=200, nbytes=70),
        SeenVersion(4, 2, is_seed=True, changed=110, count=200, nbytes=1100),
    )


class Source:
    """Says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        self.asked.append((after_n, timeout_s))
        return [manifest(1, base=0), manifest(2, base=1)]

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        self.asked.append((n, tuple(tiles)))
        return manifest(3, base=None, changed=(1,) * len(tiles)) if n == 3 else None

    def chunks(self, key: UpdateKey, wanted):
        self.asked.append((key, wanted))
        yield 1, b"frame"

    def report(self, receiver: str, n: int, is_match: bool, digest) -> None:
        self.asked.append((receiver, n, is_match, digest))


def test_a_noted_source_changes_nothing_and_tells_of_every_version() -> None:
    source, noted = Source(), []
    around = NotedSource(source, noted.append)
    passed = around.wait_manifests(7, 0.5)
    survey, seed, none = around.seed(3, ()), around.seed(3, [0, 1]), around.seed(4, [0])
    assert (survey, none) == (manifest(3, base=None, changed=()), None)
    assert noted == [*passed, seed]  # a survey brings no weights
    key = UpdateKey(3, 2)
    assert list(around.chunks(key, ())) == [(1, b"frame")]
    around.report("worker-0", 3, True, (1, 2))
    assert source.asked == [
        (7, 0.5),
        *[(3, ()), (3, (0, 1)), (4, (0,))],
        (key, ()),
        ("worker-0", 3, True, (1, 2)),
    ]


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
