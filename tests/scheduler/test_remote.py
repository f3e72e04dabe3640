"""A worker that misbehaves, freezes or vanishes is lost, once, and nothing comes after it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.errors import DeadlineExceeded, InvalidArgument
from rose.scheduler import remote
from rose.scheduler.outbox import Nothing, Outbox
from rose.scheduler.remote import RemoteWorker
from rose.scheduler.wire import (
    MESSAGE_BYTES_MAX,
    METHOD,
    SERVICE,
    Command,
    Greeting,
    Heartbeat,
    Ping,
    StopTurn,
    decode_command,
    encode,
)
from rose.scheduler.worker import TurnOutput, TurnRequest, WorkerKind, WorkerLost
from tests.node.rig import Scheduler, no_thread_is_left, request
from tests.scheduler.test_wire import NEWS_OF_A_CONNECTION
from tests.waiting import LONG_S, wait_for

GREETING = encode(Greeting(1, WorkerKind.DEDICATED))


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    monkeypatch.setattr(remote, "SILENCE_MAX_S", 60.0)
    monkeypatch.setattr(remote, "PING_S", 0.02)


class Script:
    """A server that says the frames it is given and keeps the commands it hears."""

    def __init__(self, frames: list[bytes], *, is_ending: bool = False, is_deaf: bool = False):
        self._frames = frames
        self._is_ending = is_ending
        self._is_deaf = is_deaf
        self.commands: list[Command] = []
        self.more: Outbox[bytes] = Outbox(items_max=1000)

    def __call__(self, requests, context) -> Iterator[bytes]:
        if not self._is_deaf:
            threading.Thread(target=self._listen, args=(requests,)).start()
        yield from self._frames
        while not self._is_ending and context.is_active():
            frame = self.more.take(wait_s=0.01)
            if not isinstance(frame, Nothing):
                yield frame

    def _listen(self, requests) -> None:
        with suppress(grpc.RpcError):
            self.commands.extend(decode_command(frame) for frame in requests)


@pytest.fixture
def play() -> Iterator[Callable[..., str]]:
    """Serve a script; returns its address."""
    with no_thread_is_left(), ExitStack() as stack:

        def serve(script: Script) -> str:
            pool = ThreadPoolExecutor(4)
            server = grpc.server(pool, options=(("grpc.max_send_message_length", -1),))
            handler = grpc.stream_stream_rpc_method_handler(script)
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
            )
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            stack.callback(pool.shutdown)
            stack.callback(lambda: server.stop(0).wait())
            return f"127.0.0.1:{port}"

        yield serve


@pytest.fixture
def connect(play) -> Iterator[Callable[..., RemoteWorker]]:
    with ExitStack() as stack:

        def open_(address: str, on_event) -> RemoteWorker:
            worker = RemoteWorker(address, "token", 1, WorkerKind.DEDICATED, on_event)
            stack.callback(worker.close)
            return worker

        yield open_


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        ([GREETING], "it ended the stream"),
        ([GREETING, b"garbage"], "cannot be read"),
        ([GREETING, b"\x93\x03\xa4what\x80"], "a message of format 3"),
        (
            [encode(Greeting(2, WorkerKind.DEDICATED))],
            "dedicated worker 2 answered instead",
        ),
        (
            [encode(Greeting(1, WorkerKind.BORROWED))],
            "borrowed worker 1 answered instead",
        ),
        ([GREETING, b"x" * (MESSAGE_BYTES_MAX + 1)], "RESOURCE_EXHAUSTED"),
        ([GREETING, encode(WorkerLost(1, "its loop died"))], "its loop died"),
    ],
)
def test_a_worker_that_misbehaves_is_lost_once(play, connect, frames, sentence: str) -> None:
    scheduler = Scheduler()
    late = [encode(TurnOutput(1, 1, 0, 1, 0, (5,), (-0.5,), (3,)))] * 3
    is_ending = len(frames) == 1 and "ended" in sentence
    script = Script(frames if is_ending else frames + late, is_ending=is_ending)
    worker = connect(play(script), scheduler)
    wait_for(scheduler.losses)
    worker.start_turn(request(1))  # Dropped: the worker is lost already.
    worker.stop_turn(1)
    worker.close()
    assert [type(event) for event in scheduler.events] == [WorkerLost]
    assert sentence in scheduler.losses()[0].reason


def test_nobody_there_is_a_lost_worker(connect, play) -> None:
    scheduler = Scheduler()
    connect("127.0.0.1:9", scheduler)  # Nobody listens there, or nobody that speaks this.
    wait_for(scheduler.losses)
    assert "its stream broke (UNAVAILABLE" in scheduler.losses()[0].reason
    assert len(scheduler.events) == 1


def test_commands_arrive_in_order_and_pings_between(play, connect) -> None:
    script = Script([GREETING])
    worker = connect(play(script), Scheduler())
    wait_for(lambda: Ping() in script.commands)
    sent = [request(number) if number % 3 else StopTurn(number) for number in range(100)]
    for command in sent:
        if isinstance(command, TurnRequest):
            worker.start_turn(command)
        else:
            worker.stop_turn(command.trajectory)
    wait_for(lambda: len([one for one in script.commands if one != Ping()]) == len(sent))
    assert [one for one in script.commands if one != Ping()] == sent


@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(NEWS_OF_A_CONNECTION))
def test_events_arrive_in_order_bit_for_bit(play, connect, news) -> None:
    scheduler = Scheduler()
    worker = connect(play(Script([GREETING, *map(encode, news)])), scheduler)
    events = [one for one in news if one != Heartbeat()]
    wait_for(lambda: len(scheduler.events) >= len(events))
    worker.close()
    assert list(map(repr, scheduler.events)) == list(map(repr, events))


def test_a_request_that_cannot_be_sent_is_refused_and_the_worker_lives(play, connect) -> None:
    scheduler, script = Scheduler(), Script([GREETING])
    worker = connect(play(script), scheduler)
    with pytest.raises(InvalidArgument, match=str(MESSAGE_BYTES_MAX)):
        worker.start_turn(request(1, prompt=(127,) * (MESSAGE_BYTES_MAX + 1)))
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        worker.start_turn(request(2, seed=2**64))
    worker.start_turn(request(3))
    wait_for(lambda: request(3) in script.commands)
    assert scheduler.events == []


def test_a_callback_that_is_slow_is_no_silence(play, connect, monkeypatch) -> None:
    monkeypatch.setattr(remote, "SILENCE_MAX_S", 0.2)
    held, entered, scheduler = threading.Event(), threading.Event(), Scheduler()

    def slow(event) -> None:
        scheduler(event)
        entered.set()
        held.wait(LONG_S)

    output = TurnOutput(1, 1, 0, 1, 0, (5,), (-0.5,), (3,))
    worker = connect(play(Script([GREETING, encode(output)])), slow)
    assert entered.wait(LONG_S)
    worker._threads[1].join(1.0)
    assert scheduler.events == [output]
    assert worker._threads[1].is_alive()
    held.set()
    wait_for(scheduler.losses)
    assert "no sign of life" in scheduler.losses()[0].reason


def test_a_worker_that_takes_no_commands_is_lost_and_nobody_waited(
    play, connect, monkeypatch
) -> None:
    monkeypatch.setattr(remote, "COMMANDS_MAX", 4)
    scheduler = Scheduler()
    worker = connect(play(Script([GREETING], is_deaf=True)), scheduler)
    for number in range(2000):  # Each of 100 kB: more than all buffers on the way hold.
        worker.start_turn(request(number, prompt=(2**31,) * 20_000))
        if scheduler.losses():
            break
    wait_for(scheduler.losses)
    assert "4 commands to it already waited" in scheduler.losses()[0].reason


def test_nothing_comes_after_close(play, connect) -> None:
    scheduler, script = Scheduler(), Script([GREETING])
    worker = connect(play(script), scheduler)
    output = TurnOutput(1, 1, 0, 1, 0, (5,), (-0.5,), (3,))
    script.more.put(encode(output))
    wait_for(lambda: scheduler.events)
    worker.close()
    script.more.put(encode(output))
    assert scheduler.events == [output]
    worker.close()  # Twice is once.


def test_a_callback_may_close_its_worker(play) -> None:
    left = threading.Event()

    def leave(event) -> None:
        ready.wait(LONG_S)
        worker.close()
        left.set()

    ready = threading.Event()
    script = Script([GREETING, encode(TurnOutput(1, 1, 0, 1, 0, (5,), (-0.5,), (3,)))])
    worker = RemoteWorker(play(script), "token", 1, WorkerKind.DEDICATED, leave)
    ready.set()
    assert left.wait(LONG_S)


def test_a_callback_that_does_not_return_is_told_in_time(play, monkeypatch) -> None:
    monkeypatch.setattr(remote, "CLOSE_S", 0.1)
    held, script = threading.Event(), Script([GREETING])
    script.more.put(encode(TurnOutput(1, 1, 0, 1, 0, (5,), (-0.5,), (3,))))
    entered = threading.Event()

    def stuck(event) -> None:
        entered.set()
        held.wait(LONG_S)

    worker = RemoteWorker(play(script), "token", 1, WorkerKind.DEDICATED, stuck)
    assert entered.wait(LONG_S)
    with pytest.raises(DeadlineExceeded, match="its callback does not return"):
        worker.close()
    held.set()


@pytest.mark.parametrize("address", ["192.0.2.1:80", "example.com:1", "127.0.0.1"])
def test_a_token_is_never_sent_to_another_machine(address: str) -> None:
    with pytest.raises(InvalidArgument, match=address):
        RemoteWorker(address, "token", 1, WorkerKind.DEDICATED, Scheduler())
