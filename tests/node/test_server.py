"""One worker, one scheduler at a time: nothing is lost while it is there, nothing runs after."""

import threading

import grpc
import pytest

from rose.errors import InvalidArgument, Unavailable
from rose.node import session
from rose.node.server import WorkerServer
from rose.scheduler.wire import (
    MESSAGE_BYTES_MAX,
    METHOD,
    OPTIONS,
    SERVICE,
    TOKEN_KEY,
    Greeting,
    Heartbeat,
    decode_news,
    encode,
)
from rose.scheduler.worker import (
    GrantChanged,
    TurnEnd,
    TurnOutput,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)
from tests.node.rig import Scheduler, request
from tests.waiting import LONG_S, wait_for


class QuietWorker:
    """Says what a test makes it say, and ends no turn of its own."""

    number = 1
    kind = WorkerKind.DEDICATED

    def __init__(self, on_event) -> None:
        self.on_event = on_event
        self.started: list[int] = []
        self.stopped: list[int] = []

    def start_turn(self, request) -> None:
        self.started.append(request.trajectory)

    def stop_turn(self, trajectory: int) -> None:
        self.stopped.append(trajectory)

    def stop(self) -> None:
        pass

    def say_end(self, trajectory: int) -> None:
        end = TurnEnd.INTERRUPTED
        self.on_event(TurnOutput(1, trajectory, 0, 1, 0, (), (), (), end=end))


class RawScheduler:
    """A stream whose every byte the test chooses; `frames` ends when the stream does."""

    def __init__(self, address: str, *, token: str = "secret") -> None:
        self._more = threading.Event()
        self._frames: list[bytes] = []
        self._is_over = False
        self.channel = grpc.insecure_channel(address, options=OPTIONS[2:])
        self.call = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")(
            self._requests(), metadata=((TOKEN_KEY, token),)
        )

    def send(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._more.set()

    def _requests(self):
        while not self._is_over:
            assert self._more.wait(LONG_S)
            self._more.clear()
            while self._frames:
                yield self._frames.pop(0)

    def status(self) -> tuple[grpc.StatusCode, str]:
        """Read to the end of the stream."""
        with pytest.raises(grpc.RpcError):
            for _ in self.call:
                pass
        return self.call.code(), self.call.details()

    def close(self) -> None:
        self._is_over = True
        self._more.set()
        self.call.cancel()
        self.channel.close()


@pytest.fixture
def raw(node):
    opened = []

    def connect(server, **options) -> RawScheduler:
        opened.append(RawScheduler(server.address, **options))
        return opened[-1]

    yield connect
    for scheduler in opened:
        scheduler.close()


def test_turns_run_to_their_end_bit_for_bit(node) -> None:
    scheduler = Scheduler()
    worker = node.connect(node.serve(), scheduler)
    asked = [request(number, tokens=5 + number, first_token=number) for number in range(20)]
    for one in asked:
        worker.start_turn(one)
    wait_for(lambda: all(scheduler.ends(one.trajectory) for one in asked))
    for one in asked:
        scheduler.check_said(one)
        assert scheduler.ends(one.trajectory) == [TurnEnd.FINISHED]
        assert len(scheduler.tokens(one.trajectory)) == one.max_new_tokens


def test_a_turn_is_stopped_while_events_flow(node) -> None:
    scheduler = Scheduler()
    worker = node.connect(node.serve(), scheduler)
    asked = [request(number, tokens=10_000) for number in range(8)]
    for one in asked:
        worker.start_turn(one)
    for one in asked:
        wait_for(lambda one=one: len(scheduler.tokens(one.trajectory)) > 3)
        worker.stop_turn(one.trajectory)
    worker.stop_turn(12345)  # Nobody's.
    wait_for(lambda: all(scheduler.ends(one.trajectory) for one in asked))
    for one in asked:
        scheduler.check_said(one)
        assert scheduler.ends(one.trajectory) == [TurnEnd.INTERRUPTED]
        assert scheduler.outputs(one.trajectory)[-1].end is TurnEnd.INTERRUPTED


def test_a_second_scheduler_is_refused_and_the_first_goes_on(node) -> None:
    first, second = Scheduler(), Scheduler()
    server = node.serve()
    worker = node.connect(server, first)
    worker.start_turn(request(1, tokens=10_000))
    wait_for(lambda: first.tokens(1))
    node.connect(server, second)
    wait_for(second.losses)
    assert "already has a scheduler" in second.losses()[0].reason
    assert len(second.events) == 1
    said = len(first.tokens(1))
    wait_for(lambda: len(first.tokens(1)) > said)
    assert first.losses() == []


def test_the_turns_of_a_scheduler_that_goes_away_are_stopped(node) -> None:
    first, second = Scheduler(), Scheduler()
    server = node.serve()
    worker = node.connect(server, first)
    for number in range(3):
        worker.start_turn(request(number, tokens=100_000))
    wait_for(lambda: len(server.worker.running()) == 3)
    worker.close()
    assert first.losses() == []  # It left of its own accord.
    wait_for(lambda: not server.worker.running())
    again = node.connect(server, second)
    again.start_turn(request(1, tokens=5))
    wait_for(lambda: second.ends(1))
    second.check_said(request(1, tokens=5))
    assert second.ends(1) == [TurnEnd.FINISHED]


def test_the_next_scheduler_hears_nothing_of_the_turns_before(node) -> None:
    """The old turn's end must not be taken for the end of a new turn of the same name."""
    server = node.serve(QuietWorker)
    first, second = Scheduler(), Scheduler()
    worker = node.connect(server, first)
    worker.start_turn(request(1))
    wait_for(lambda: server.worker.started == [1])
    worker.close()
    wait_for(lambda: server.worker.stopped == [1])
    again = node.connect(server, second)
    again.start_turn(request(1))
    # It is not let in: not even heard. (The time gives it a chance to be, and proves nothing.)
    assert not threading.Event().wait(0.3)
    assert (server.worker.started, second.events) == ([1], [])
    # The end of the old turn opens the door.
    server.worker.on_event(VersionCommitted(1, 4, is_match=True, pause_ms=0.5))
    server.worker.say_end(1)
    wait_for(lambda: server.worker.started == [1, 1])
    wait_for(lambda: second.events)
    assert second.outputs(1) == []
    server.worker.say_end(1)
    wait_for(lambda: second.ends(1))
    assert second.ends(1) == [TurnEnd.INTERRUPTED]


def test_a_worker_whose_turns_do_not_end_is_refused_in_time(node, monkeypatch) -> None:
    monkeypatch.setattr("rose.node.server.DRAIN_S", 0.1)
    server = node.serve(QuietWorker)
    worker = node.connect(server, Scheduler())
    worker.start_turn(request(1))
    wait_for(lambda: server.worker.started == [1])
    worker.close()
    wait_for(lambda: server.worker.stopped == [1])
    second = Scheduler()
    node.connect(server, second)
    wait_for(second.losses)
    assert "have not ended yet" in second.losses()[0].reason


def test_a_scheduler_first_hears_what_holds(node) -> None:
    server = node.serve(QuietWorker)
    say = server.worker.on_event
    say(GrantChanged(1, 1, 100, ttl_ms=0))
    say(GrantChanged(1, 1, 200, ttl_ms=0))
    say(VersionCommitted(1, 8, is_match=True, pause_ms=1.5))
    say(VersionCommitted(1, 9, is_match=True, pause_ms=2.5))
    scheduler = Scheduler()
    worker = node.connect(server, scheduler)
    wait_for(lambda: len(scheduler.events) == 2)
    assert scheduler.events == [
        GrantChanged(1, 1, 200, ttl_ms=0),
        VersionCommitted(1, 9, is_match=True, pause_ms=2.5),
    ]
    worker.close()
    say(GrantChanged(1, 2, 300, ttl_ms=2000.0))  # Stale by the time somebody hears it.
    again = Scheduler()

    def is_let_in() -> bool:
        """The server may hear of the new scheduler before it hears that the old one left."""
        again.events.clear()
        node.connect(server, again)
        wait_for(lambda: again.events)
        return not again.losses()

    wait_for(is_let_in)
    assert again.events == scheduler.events[1:]


def test_a_lost_worker_is_told_to_whoever_comes(node) -> None:
    server = node.serve(QuietWorker)
    first, second = Scheduler(), Scheduler()
    worker = node.connect(server, first)
    worker.start_turn(request(1))
    wait_for(lambda: server.worker.started == [1])
    lost = WorkerLost(1, "its loop died")
    server.worker.on_event(lost)
    wait_for(first.losses)
    node.connect(server, second)
    wait_for(second.losses)
    assert first.events == second.events == [lost]


def test_a_slow_reader_loses_the_stream_and_never_holds_the_worker_up(node, monkeypatch) -> None:
    """The engine's thread puts events and goes on, whatever the scheduler does with them."""
    monkeypatch.setattr(session, "EVENTS_MAX", 64)
    server = node.serve(QuietWorker)
    held, asked = threading.Event(), Scheduler()

    def slow(event) -> None:
        asked(event)
        assert held.wait(LONG_S)

    worker = node.connect(server, slow)
    worker.start_turn(request(1))
    wait_for(lambda: server.worker.started == [1])
    output = TurnOutput(1, 1, 0, 1, 0, (5,) * 5000, (-0.5,) * 5000, (3,) * 5000)
    server.worker.on_event(output)
    try:
        wait_for(lambda: asked.events == [output])
        for _ in range(2000):  # More than all buffers on the way hold.
            server.worker.on_event(output)
        wait_for(lambda: server.worker.stopped == [1])
        assert asked.events == [output]
    finally:
        held.set()
    wait_for(asked.losses)
    assert set(asked.events[:-1]) == {output}
    assert asked.losses() == asked.events[-1:]


def test_a_frozen_scheduler_is_gone_after_a_while(node, raw, monkeypatch) -> None:
    """It keeps its stream open and says nothing: neither commands nor pings."""
    monkeypatch.setattr(session, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(session, "SILENCE_MAX_S", 0.3)
    server = node.serve()
    frozen = raw(server)
    frozen.send(encode(request(1, tokens=100_000)))
    code, details = frozen.status()
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "sent nothing for 0.3 s" in details
    wait_for(lambda: not server.worker.running())


def test_an_idle_worker_shows_that_it_lives(node, raw, monkeypatch) -> None:
    monkeypatch.setattr(session, "HEARTBEAT_S", 0.01)
    server = node.serve(QuietWorker)
    said = [decode_news(frame) for frame, _ in zip(raw(server).call, range(6), strict=False)]
    assert said == [Greeting(1, WorkerKind.DEDICATED), *[Heartbeat()] * 5]


@pytest.mark.parametrize("token", ["", "secret2"])
def test_a_wrong_token_learns_nothing(node, raw, token: str) -> None:
    server = node.serve()
    stranger = raw(server, token=token)
    assert stranger.status()[0] is grpc.StatusCode.UNAUTHENTICATED
    scheduler = Scheduler()
    node.connect(server, scheduler, token=token)
    wait_for(lambda: scheduler.events)
    assert "the token must be this worker's" in scheduler.losses()[0].reason
    assert len(scheduler.events) == 1


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"\x00garbage", "cannot be read"),
        (b"", "cannot be read"),
        (b"\x93\x03\xa4ping\x80", "a message of format 3"),
        (encode(Heartbeat()), "'heartbeat' is unknown"),
    ],
)
def test_garbage_ends_the_stream_and_stops_its_turns(node, raw, frame, sentence: str) -> None:
    server = node.serve()
    stranger = raw(server)
    stranger.send(encode(request(1, tokens=100_000)))
    wait_for(server.worker.running)
    stranger.send(frame)
    code, details = stranger.status()
    assert code is grpc.StatusCode.DATA_LOSS
    assert sentence in details
    wait_for(lambda: not server.worker.running())
    scheduler = Scheduler()
    worker = node.connect(server, scheduler)
    worker.start_turn(request(2, tokens=5))
    wait_for(lambda: scheduler.ends(2) == [TurnEnd.FINISHED])


def test_an_oversized_message_is_not_taken_in(node, raw) -> None:
    server = node.serve()
    stranger = raw(server)
    assert decode_news(next(stranger.call)) == Greeting(1, WorkerKind.DEDICATED)
    stranger.send(b"\x93\x01" + b"\x00" * MESSAGE_BYTES_MAX)
    assert stranger.status()[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_news_that_cannot_be_sent_end_the_stream(node) -> None:
    server = node.serve(QuietWorker)
    scheduler = Scheduler()
    worker = node.connect(server, scheduler)
    worker.start_turn(request(1))
    wait_for(lambda: server.worker.started == [1])
    server.worker.on_event(VersionCommitted(1, 2**70, is_match=True, pause_ms=0.0))
    wait_for(scheduler.losses)
    assert "VersionCommitted cannot be sent" in scheduler.losses()[0].reason
    wait_for(lambda: server.worker.stopped == [1])


def test_what_was_said_before_the_end_arrives(node) -> None:
    server = node.serve(QuietWorker)
    scheduler = Scheduler()
    worker = node.connect(server, scheduler)
    worker.start_turn(request(1))
    wait_for(lambda: server.worker.started == [1])
    said = [TurnOutput(1, 1, 0, 1, n, (n,), (-0.5,), (3,)) for n in range(500)]
    for output in said:
        server.worker.on_event(output)
    server.close()
    wait_for(scheduler.losses)
    assert scheduler.events[:-1] == said
    assert server.worker.stopped == [1]


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "192.0.2.1:80", "example.com:80", "[::]:0", "127.0.0.1", "nonsense"]
)
def test_only_this_machine_is_served(address: str) -> None:
    def never(on_event):
        raise AssertionError("the worker was made")

    with pytest.raises(InvalidArgument, match=address.replace("[", r"\[")):
        WorkerServer(never, address, token="secret")


def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(InvalidArgument, match="token"):
        WorkerServer(QuietWorker, token="")


def test_a_taken_address_is_unavailable(node) -> None:
    server = node.serve(QuietWorker)
    with pytest.raises(Unavailable, match="cannot listen"):
        node.serve(QuietWorker, address=server.address)
