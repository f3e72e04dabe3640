"""Engines that answer, lie, dribble or die, over a real socket."""

import socket
import threading
import time

import pytest

from rose.clock import BootClock
from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.broker import Broker, BrokerSettings, Move
from rose.scheduler.broker.endpoint import FetchLimits, endpoint_of, fetch_text
from rose.scheduler.broker.nvml import GpuUse
from rose.scheduler.broker.poller import BrokerPoller, PolledDevice, PollSettings
from tests.scheduler import engine_pages
from tests.scheduler.broker_world import device
from tests.scheduler.engine_pages import serving, sglang, vllm

EAGER = BrokerSettings(settle_ms=0.0, grow_every_ms=0.001, hold_min_ms=1.0)
LIMITS = FetchLimits(timeout_ms=30_000, attempts=1, backoff_ms=1)
# A server that never ends must be left; far above what a busy machine takes for a whole page.
HASTY = FetchLimits(timeout_ms=400, attempts=1)


class StepClock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.ns = 0
        self.slept_s = []

    def now_ns(self):
        return self.ns

    def sleep(self, seconds):
        self.slept_s.append(seconds)


def fetched(url, limits=LIMITS, clock=None):
    return fetch_text(endpoint_of(url), clock or StepClock(), limits=limits)


def poller(*polled, broker=None, clock=None, meter=None, limits=LIMITS):
    return BrokerPoller(
        polled,
        broker or Broker(EAGER),
        clock=clock or StepClock(),
        day_minute=lambda: 0,
        meter=meter,
        settings=PollSettings(limits=limits),
    )


def test_a_page_is_fetched_from_the_path_of_engines_or_the_one_that_is_named():
    with serving("page") as server:
        assert fetched(server.url) == "page"
        assert fetched(server.url + "/") == "page"
        assert fetched(server.url + "/v1/metrics?engine=0") == "page"
        assert server.paths == ["/metrics", "/metrics", "/v1/metrics?engine=0"]


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://localhost/x", "http://", "http://localhost:port",
     "http://localhost:99999", "http://name:secret@localhost", "http://localhost/a b",
     "http://localhost/\r\nX: y", "http://[::1", "file:///etc/passwd"],
)  # fmt: skip
def test_what_is_no_url_is_refused(url):
    with pytest.raises(InvalidArgument):
        endpoint_of(url)


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (500, "answers with status 500"),
        (302, "answers with status 302"),
        (b"\xff\xfe\x00", "no text"),
        (engine_pages.not_http, "does not answer"),
        (engine_pages.endless, "more than 4 MiB"),
    ],
)
def test_a_bad_answer_is_one_sentence(page, sentence):
    with serving(page) as server, pytest.raises(Unavailable, match=sentence):
        fetched(server.url)


@pytest.mark.parametrize(
    "page", [engine_pages.dribbling, engine_pages.dribbling_headers, engine_pages.silent]
)
def test_a_server_that_never_ends_is_left_in_time(page):
    with serving(page) as server, pytest.raises(Unavailable, match="within 400 ms"):
        fetched(server.url, HASTY)


@pytest.mark.parametrize("page", ["page", engine_pages.dribbling])
def test_a_server_that_is_found_too_late_is_not_read(monkeypatch, page):
    finds = socket.getaddrinfo

    def find_slowly(*args, **how):
        time.sleep(1.0)  # No timeout reaches the resolver.
        return finds(*args, **how)

    with serving(page) as server:
        monkeypatch.setattr(socket, "getaddrinfo", find_slowly)
        with pytest.raises(Unavailable, match="within 400 ms"):
            fetched(server.url, HASTY)
    assert server.asked == 0


def test_nobody_there_is_one_sentence_and_no_thread_is_left():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    before = threading.active_count()
    with pytest.raises(Unavailable, match="does not answer: Connection refused"):
        fetched(url)
    assert threading.active_count() == before


def test_a_page_is_tried_again_and_each_wait_is_twice_the_one_before():
    limits = FetchLimits(timeout_ms=30_000, attempts=4, backoff_ms=100)
    clock = StepClock()
    with serving(500, 500, "page") as server:
        assert fetched(server.url, limits, clock) == "page"
    assert clock.slept_s == [0.1, 0.2]
    with serving(500) as server:
        with pytest.raises(Unavailable, match="status 500"):
            fetched(server.url, limits, clock)
        assert server.asked == 4


def test_engines_are_read_and_lent_on():
    with serving(vllm()) as first, serving(sglang()) as second:
        polled = (PolledDevice(device("a"), first.url), PolledDevice(device("b"), second.url))
        broker = poller(*polled)
        decisions = broker.poll()
        broker.close()
    assert [(one.device, one.move) for one in decisions] == [("a", Move.LEND), ("b", Move.LEND)]


@pytest.mark.parametrize(
    "page",
    [500, "", vllm(kv=float("nan")), vllm(running=-1), engine_pages.endless, b"\xff"],
)
def test_a_broken_engine_lends_nothing_new_and_the_decision_says_why(page):
    clock = StepClock()
    with serving(vllm(), page) as broken, serving(vllm()) as sound:
        polled = (PolledDevice(device("a"), broken.url), PolledDevice(device("b"), sound.url))
        broker = poller(*polled, clock=clock)
        before, _ = broker.poll()
        clock.ns += 5 * 10**9
        after, other = broker.poll()
        broker.close()
    assert before.move is Move.LEND
    assert (after.move, after.lend_bytes) == (Move.KEEP, before.lend_bytes)
    assert after.ttl_ms == before.ttl_ms - 5e3  # it is not renewed
    assert after.why.startswith("not renewed: ")
    assert other.move is Move.GROW  # nobody else pays for it


def test_a_loan_on_a_device_that_stays_silent_ends_when_its_time_is_over():
    clock = StepClock()
    with serving(vllm(), 500) as server:
        broker = poller(PolledDevice(device("a"), server.url), clock=clock)
        (begun,) = broker.poll()
        moves = []
        for _ in range(20):
            clock.ns += 5 * 10**9
            moves.append(broker.poll()[0].move)
        asked = server.asked
        broker.close()
    kept = int(begun.ttl_ms / 5e3 - 1e-9)
    assert moves == [Move.KEEP] * kept + [Move.END] + [Move.REFUSE] * (19 - kept)
    assert asked < 10  # it is asked later and later


def test_an_engine_that_comes_back_is_lent_on_again():
    clock = StepClock()
    with serving(500, 500, vllm()) as server:
        broker = poller(PolledDevice(device("a"), server.url), clock=clock)
        moves = []
        for _ in range(8):
            moves.append(broker.poll()[0].move)
            clock.ns += 5 * 10**9
        broker.close()
    assert moves[0] is Move.REFUSE
    assert moves[-1] is Move.GROW


class Meter:
    def use(self, gpu):
        return GpuUse(sm_busy=0.99, memory_used=0.5) if gpu == 0 else None

    def close(self):
        pass


def test_a_gpu_that_computes_all_the_time_gets_no_first_loan():
    with serving(vllm()) as server:
        polled = [PolledDevice(device(f"g{n}"), server.url, gpu=n) for n in range(2)]
        broker = poller(*polled, meter=Meter())
        busy, unknown = broker.poll()
        broker.close()
    assert (busy.move, busy.why) == (Move.REFUSE, "it computes 99% of the time")
    assert unknown.move is Move.LEND


def test_polling_goes_on_until_it_is_stopped():
    stop, seen = threading.Event(), []

    def take(decisions):
        seen.append(decisions)
        if len(seen) == 3:
            stop.set()

    with serving(vllm()) as server:
        broker = BrokerPoller(
            [PolledDevice(device("a"), server.url)],
            Broker(EAGER),
            clock=BootClock(),
            day_minute=lambda: 0,
            settings=PollSettings(period_ms=1.0, limits=LIMITS),
        )
        thread = threading.Thread(target=broker.run, args=(take, stop))
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()
        broker.close()
    assert len(seen) == 3


def test_two_devices_of_one_name_are_refused():
    polled = PolledDevice(device("a"), "http://localhost:1")
    with pytest.raises(InvalidArgument, match="one name"):
        poller(polled, polled)


def test_minute_of_the_day_is_one(monkeypatch):
    from rose import clock

    monkeypatch.setattr(time, "time", lambda: 86_400 * 3 + 61 * 60 + 59.9)
    assert clock.utc_minute_of_day() == 61
