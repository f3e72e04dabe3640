"""`rose engine`: its state and events, its end, and the places from which people start it."""

import os
import pty
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rose.cli.engine import engine
from rose.errors import InvalidArgument
from tests.node.programs import BODY, ROOT, ROSE, started
from tests.waiting import LONG_S, wait_for

TRIAL = ("engine", "trial", "--listen", "127.0.0.1:0")


def test_status_and_events_tell_the_state_and_its_changes() -> None:
    with started(*TRIAL, "--served-model-name", "m", token="secret") as one:
        state = one.get("/rose/status")["engine"]
        status = state["status"]
        assert (status["kind"], status["model"], status["vocabulary"]) == ("borrowed", "m", 256)
        assert "seeds" in status["features"]
        assert state["grant"] == {"grant_epoch": 1, "kv_tokens": status["kv_tokens"], "ttl_ms": 0.0}
        assert state["wait"] == {"reason": None}
        events = one.events()
        assert [next(events) for _ in range(3)] == [
            (word, state[word]) for word in ("status", "grant", "version")
        ]
        one.process.send_signal(signal.SIGUSR1)
        assert next(events) == ("grant", {"grant_epoch": 1, "kv_tokens": 0, "ttl_ms": 0.0})
        one.process.send_signal(signal.SIGUSR2)
        assert next(events) == ("grant", {**state["grant"], "grant_epoch": 2})
        one.client.post("/start_weight_update")
        assert one.client.post("/finish_weight_update").json()["weight_version"] == 1
        assert next(events) == ("version", {"version": 1, "is_match": True, "pause_ms": 0.0})
        assert one.get("/rose/status")["engine"]["status"]["version"] == 1
        one.process.send_signal(signal.SIGTERM)
        assert next(events) == ("lost", {"reason": "this program is shutting down"})
        assert one.process.wait(LONG_S) == 0


def test_an_idle_stream_has_a_comment_each_second() -> None:
    with started(*TRIAL) as one, one.client.stream("GET", "/rose/events") as answer:
        lines = answer.iter_lines()
        while next(lines) != ": ping":
            pass


@pytest.mark.parametrize("path", ["/rose/status", "/rose/events", "/v1/models"])
def test_no_route_but_health_answers_without_the_token(path: str) -> None:
    with started(*TRIAL, token="secret") as one:
        del one.client.headers["authorization"]
        assert one.client.get(path).status_code == 401
        assert one.is_well()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_running_requests_with_an_answer(number: signal.Signals) -> None:
    with started(*TRIAL) as one:
        answers: list[int] = []
        body = {**BODY, "max_tokens": 100_000}

        def ask() -> None:
            answers.append(one.client.post("/v1/completions", json=body).status_code)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_for(lambda: one.get("/server_info")["rose"]["sequences"] == 1)
        with one.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            assert one.end(number) == 0
            left = [line for line in lines if line]
        thread.join(LONG_S)
        assert answers == [503]
        assert any('"code":503' in line for line in left)
        assert "Traceback" not in one.errors


# ---- places to start it from ---------------------------------------------------------------------


def test_it_runs_with_stdin_closed() -> None:
    with started(*TRIAL, stdin=None, prefix=("sh", "-c", 'exec "$@" <&-', "sh")) as one:
        assert len(one.tokens()) == 6
        assert one.end() == 0


def test_it_outlives_the_terminal_that_nohup_started_it_from() -> None:
    with started(*TRIAL, prefix=("nohup",), start_new_session=True) as one:
        os.killpg(one.process.pid, signal.SIGHUP)
        assert len(one.tokens()) == 6
        assert one.end() == 0


def test_it_runs_in_the_background_of_a_terminal(tmp_path: Path) -> None:
    """A job that reads the terminal would be stopped when the user types the next line."""
    out = tmp_path / "out"
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.environ["TERM"] = "dumb"  # no codes between the words
        os.execvp("bash", ["bash", "--norc", "-i"])
    try:
        shown = bytearray()

        def read() -> None:
            try:
                while piece := os.read(terminal, 65536):
                    shown.extend(piece)
            except OSError:
                return

        threading.Thread(target=read, daemon=True).start()
        words = " ".join((*ROSE, *TRIAL))
        os.write(terminal, f"PYTHONUNBUFFERED=1 {words} > {out} 2>&1 &\n".encode())
        wait_for(lambda: out.exists() and "listening" in out.read_text())
        os.write(terminal, b"echo typed\n")
        wait_for(lambda: b"\ntyped" in shown)
        shown.clear()
        os.write(terminal, b"jobs -l\n")
        wait_for(lambda: b"Running" in shown or b"Stopped" in shown)
        assert b"Stopped" not in shown
        os.write(terminal, b"kill %1; wait %1; echo status=$?\n")
        wait_for(lambda: b"status=0" in shown)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def test_it_goes_on_after_it_was_stopped_and_continued() -> None:
    with started(*TRIAL) as one:
        before = one.tokens()
        one.process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)  # longer than a pause that the scheduler takes for ordinary
        one.process.send_signal(signal.SIGCONT)
        assert one.tokens() == before
        assert one.end() == 0


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("trial --seats 3", "the engine trial has no option --seats"),
        ("trial --listen 0.0.0.0:0", "loopback"),
        ("trial --tls c k", "ROSE_TOKEN must be set"),
        ("trial --tls-ca c", "--tls-ca needs --tls"),
        ("micro-policy --weights 127.0.0.1:5", "--weights needs --weights-token"),
        ("micro-policy --weights-token f", "need --weights HOST:PORT"),
        ("micro-policy --weights 127.0.0.1:5 --weights-token missing", "cannot read missing"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: str, says: str) -> None:
    done = CliRunner(env={"ROSE_TOKEN": ""}).invoke(engine, words.split())
    assert isinstance(done.exception, InvalidArgument)
    assert says in str(done.exception)


def test_a_taken_port_is_one_sentence() -> None:
    with started(*TRIAL) as one:
        address = one.url.removeprefix("http://")
        done = subprocess.run(
            [*ROSE, *TRIAL[:2], "--listen", address], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 2
        assert done.stderr.startswith(f"rose: cannot listen at {address}: Address already in use")
        assert done.stderr.count("\n") == 1
