"""Engines that answer, lie, dribble or die, over a real socket."""

import socket
import threading

import pytest

from rose.clock import BootClock
from rose.errors import InvalidArgument, Unavailable
from rose_lab.cli import engine_page
from rose_lab.cli.engine_page import endpoint_of, fetch_text
from tests.lab.cli import engine_pages
from tests.lab.cli.engine_pages import serving


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(engine_page, "TIMEOUT_S", 30.0)


class StepClock:
    """A clock that moves when it is told to."""

    ns = 0

    def now_ns(self):
        return self.ns


def fetched(url, clock=None):
    return fetch_text(endpoint_of(url), clock or StepClock())


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
def test_an_invalid_url_is_refused(url):
    with pytest.raises(InvalidArgument):
        endpoint_of(url)


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (500, "answers with status 500"),
        (302, "answers with status 302"),
        (b"\xff\xfe\x00", "not text"),
        (engine_pages.not_http, "does not answer"),
        (engine_pages.endless, "more than 4 MiB"),
    ],
)
def test_a_bad_answer_is_one_sentence(page, sentence):
    with serving(page) as server, pytest.raises(Unavailable, match=sentence):
        fetched(server.url)


@pytest.mark.parametrize("page", [engine_pages.dribbling, engine_pages.silent])
def test_a_server_that_never_ends_is_left_in_time(page, monkeypatch):
    # Far above what a busy machine takes for a whole page.
    monkeypatch.setattr(engine_page, "TIMEOUT_S", 0.4)
    with serving(page) as server, pytest.raises(Unavailable, match=r"within 0\.4 s"):
        fetched(server.url, BootClock())


def test_a_closed_port_is_one_sentence_and_leaves_no_thread():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    before = threading.active_count()
    with pytest.raises(Unavailable, match="does not answer: Connection refused"):
        fetched(url)
    assert threading.active_count() == before
