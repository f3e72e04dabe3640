"""Engines that answer, lie, dribble or die, over a real socket."""

import socket
import threading
import time

import pytest

from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.broker.endpoint import FetchLimits, endpoint_of, fetch_text
from tests.scheduler import engine_pages
from tests.scheduler.engine_pages import serving

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


def test_minute_of_the_day_is_one(monkeypatch):
    from rose import clock

    monkeypatch.setattr(time, "time", lambda: 86_400 * 3 + 61 * 60 + 59.9)
    assert clock.utc_minute_of_day() == 61
