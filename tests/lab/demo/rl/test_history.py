"""What a report says happened is what workers and receivers said."""

from collections.abc import Sequence

import pytest

from rose.scheduler.driver_events import Registered
from rose.scheduler.turns import Capabilities, TurnResult
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)
from rose.transfer.manifest import Chunk, Manifest, UpdateKey, Version
from rose.units import NS_PER_S
from rose_lab.demo.record import CommitRecord, TurnRecord, VersionRecord
from rose_lab.demo.rl.history import History, RelayedBytes
from rose_lab.demo.rl.rl_loop import NotedSource

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
        self.history.received(Registered(worker, kind, Capabilities(1, 1.0, 1.0)))

    def receive(self, at_s: float, event) -> None:
        self.clock.now_s = at_s
        self.history.received(event)

    def lease(self, at_s: float, kv_tokens: int, *, worker: int = 0) -> None:
        self.receive(at_s, GrantChanged(worker, 1, kv_tokens, 100.0))


@pytest.fixture
def book() -> Book:
    return Book()


def output(worker: int, tokens: int, end: TurnEnd | None = None) -> TurnOutput:
    return TurnOutput(
        worker, 5, 0, 1, 0, (65,) * tokens, (-1.0,) * tokens, (0,) * tokens, end
    )  # fmt: skip


def manifest(n: int, *, base: int | None, changed: tuple[int, ...] = ()) -> Manifest:
    chunks = tuple(
        Chunk(
            tile,
            nbytes=10 * many,
            changed=many,
            sha256=b"" if base is None else bytes(32),
            digest=(0, 0),
        )
        for tile, many in enumerate(changed)
    )
    base_version = None if base is None else Version("run", 0, base)
    return Manifest(Version("run", 0, n), base_version, (n, n), (0, 0), "0" * 64, 2, 200, chunks)


def test_a_span_is_from_a_grant_to_the_revocation_after_it(book) -> None:
    book.lease(0, 500, worker=1)  # of a dedicated worker: no span
    assert not book.history.is_granted
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


def test_the_lease_of_a_borrowed_worker_that_is_lost_is_over(book) -> None:
    book.lease(1, 500)
    book.receive(2, WorkerLost(1, "killed"))
    assert book.history.is_granted
    book.receive(3, WorkerLost(0, "its engine died"))
    assert not book.history.is_granted
    book.clock.now_s = 9
    assert book.history.spans() == ((1, 3),)


def test_commits_are_kept_in_order_and_one_that_went_back_is_an_incident(book) -> None:
    book.receive(1, VersionCommitted(0, 3, True, 2.5))
    book.receive(2, VersionCommitted(1, 3, False, 4.0))
    assert book.history.commits == (
        CommitRecord("borrowed", 1, 2.5, is_match=True, version=3),
        CommitRecord("dedicated", 2, 4.0, is_match=False, version=3),
    )
    ((at_s, sentence),) = book.history.incidents
    assert at_s == 2
    assert sentence == "dedicated worker undid a commit; it is at version 3"


def test_tokens_are_counted_by_kind(book) -> None:
    book.register(2, DEDICATED)  # The next incarnation.
    book.receive(1, output(0, 3))
    book.receive(1, output(1, 5))
    book.receive(1, output(2, 7))
    book.receive(1, output(0, 0, TurnEnd.FINISHED))
    assert (book.history.tokens(BORROWED), book.history.tokens(DEDICATED)) == (3, 12)


def test_a_version_is_noted_once_and_what_was_sent_is_of_the_change_and_the_whole(book) -> None:
    history = book.history
    history.version(manifest(5, base=5))  # Says what is there.
    book.clock.now_s = 1
    history.version(manifest(4, base=3, changed=(2, 5)))
    book.clock.now_s = 2
    history.version(manifest(3, base=2, changed=(1,)))
    history.version(manifest(4, base=3, changed=(2, 5)))  # Heard of again.
    history.version(manifest(4, base=None, changed=(60, 50)))
    assert history.versions == (
        VersionRecord(3, 2, 1 / 200, bytes_sent=10, dense_bytes=400, commits=()),
        VersionRecord(4, 1, 7 / 200, bytes_sent=1170, dense_bytes=400, commits=()),
    )


def test_a_commit_that_went_back_is_of_the_first_version_above(book) -> None:
    for n in (3, 4, 6):
        book.history.version(manifest(n, base=n - 1, changed=(1,)))
    book.receive(1, VersionCommitted(0, 2, True, 1.0))  # No receiver heard of that one.
    book.receive(2, VersionCommitted(0, 3, True, 1.0))
    book.receive(3, VersionCommitted(0, 4, False, 2.0))
    book.receive(4, VersionCommitted(0, 6, False, 3.0))  # There is none above.
    at_s = [[commit.at_s for commit in one.commits] for one in book.history.versions]
    assert at_s == [[2], [], [3, 4]]


class Source:
    """Says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        self.asked.append((after_n, timeout_s))
        return [manifest(1, base=0), manifest(2, base=1)]

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
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
    survey, snapshot, none = (around.snapshot(*one) for one in ((3, ()), (3, [0, 1]), (4, [0])))
    assert (survey, none) == (manifest(3, base=None, changed=()), None)
    assert noted == [*passed, snapshot]  # a survey brings no weights
    key = UpdateKey(3, 2)
    assert list(around.chunks(key, ())) == [(1, b"frame")]
    around.report("worker-0", 3, True, (1, 2))
    assert source.asked == [
        (7, 0.5),
        *[(3, ()), (3, (0, 1)), (4, (0,))],
        (key, ()),
        ("worker-0", 3, True, (1, 2)),
    ]


class TickingClock:
    now = 0

    def now_ns(self) -> int:
        self.now += 1
        return self.now * NS_PER_S

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def request(trajectory: int, *, turn: int = 0, first_token: int = 0) -> TurnRequest:
    return TurnRequest(trajectory, turn, 1, (2, 65, 3), first_token, 8, (1,), 1.0, 0)


def end(history: History, trajectory: int) -> None:
    history.stepped([TurnResult(trajectory, 0, (), (), (), (), is_cut=False)])


def test_a_turn_that_moves_has_two_parts_with_their_own_tokens() -> None:
    history = History(TickingClock())
    history.begin(request(7), 0, BORROWED)
    history.add(7, 2)
    history.end(7, 0)
    history.add(7, 1)  # Late tokens are of the part that said them.
    history.begin(request(7, first_token=3), 1, DEDICATED)
    history.add(7, 4)
    history.end(7, 1)
    end(history, 7)
    assert history.turns() == [
        TurnRecord(7, 0, "borrowed", start_s=1, end_s=2, tokens=3, is_resumed=False),
        TurnRecord(7, 0, "dedicated", start_s=3, end_s=4, tokens=4, is_resumed=True, number=1),
    ]
    assert (history.resumed, history.moved) == ({7}, {(7, 0)})


def test_the_end_of_another_worker_ends_no_part() -> None:
    history = History(TickingClock())
    history.begin(request(7), 0, BORROWED)
    history.begin(request(7, first_token=1), 1, DEDICATED)
    history.end(7, 0)
    history.end(7, 1)
    history.end(7, 1)  # Nor a second time.
    history.end(8, 1)  # Nor one that there is not.
    end(history, 7)
    first, second = history.turns()
    # The first was never said to end: it did when the next began.
    assert (first.end_s, second.start_s, second.end_s) == (2, 3, 4)


def test_a_lost_worker_ends_its_parts_and_no_other() -> None:
    clock = TickingClock()
    history = History(clock)
    for trajectory, worker in ((1, 0), (2, 1), (3, 0)):
        history.begin(request(trajectory), worker, BORROWED)
    history.end_all(0)
    clock.now = 100
    for trajectory in (1, 2, 3):
        end(history, trajectory)
    assert [part.end_s for part in history.turns()] == [4, 101, 5]


def test_the_sum_continues_when_a_relay_restarts_empty() -> None:
    moved = RelayedBytes()
    moved.begin()
    moved.receive('{"crossing_bytes": 10, "sent_bytes": 20}')
    moved.receive('{"crossing_bytes": 11, "sent_bytes": 25}')
    assert moved.sums() == (11, 25)
    moved.begin()
    assert moved.sums() == (11, 25)
    moved.receive('{"crossing_bytes": 1, "sent_bytes": 2}')
    assert moved.sums() == (12, 27)


@pytest.mark.parametrize(
    "line", ["", "I1122 grpc says something", "[1]", '{"crossing_bytes": "1"}']
)
def test_line_that_is_no_figure_says_nothing(line: str) -> None:
    moved = RelayedBytes()
    moved.receive(line)
    assert moved.sums() == (0, 0)
