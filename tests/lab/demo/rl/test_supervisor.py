"""A program of rose is started, minded and started again; nothing is ever left behind."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rose.errors import DeadlineExceeded
from rose_lab.demo.rl import supervisor as supervisor_module
from rose_lab.demo.rl.supervisor import Supervisor
from tests.node.rig import Program, no_thread_is_left
from tests.waiting import LONG_S, wait_for

READY = 'print(json.dumps({"token": "t", "pid": os.getpid()}), flush=True)'
UNTIL_STDIN_CLOSES = "sys.stdin.read()"


def program(*lines: str) -> list[str]:
    """A command that runs these lines of Python."""
    return [sys.executable, "-c", "\n".join(["import json, os, signal, sys, time", *lines])]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    with no_thread_is_left(), ExitStack() as stack:

        def open_(*lines: str, **options) -> Program:
            started = Program(program(*lines), **options)
            stack.callback(started.supervisor.stop)
            return started

        yield open_


def test_a_program_is_ready_when_it_prints_an_object_and_reads_its_stdin(start) -> None:
    """What the terminal signals to its parent does not reach it: it is a session of its own."""
    nothing = [
        f"print({line}, flush=True)" for line in ("'hello'", "'[1]'", "''", "'{'", "'x' * 200_000")
    ]
    one = start(*nothing, READY, "print(sys.stdin.readline(), flush=True)", "sys.exit(3)")
    wait_for(lambda: one.ready)
    pid = one.supervisor.pid
    assert one.ready == [{"token": "t", "pid": pid}]
    assert os.getpgid(pid) == os.getsid(pid) == pid != os.getpgid(0)
    one.say({"a": 1})
    wait_for(lambda: one.ends)
    assert one.order == ["ready", "end"]
    assert '{"a": 1}' in one.lines
    assert "it ended with 3" in one.ends[0]
    assert not is_alive(one.ready[0]["pid"])


def test_a_program_that_is_stopped_ends_by_sigterm(start) -> None:
    one = start(
        "signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))",
        READY,
        "signal.pause()",
    )
    wait_for(lambda: one.ready)
    one.supervisor.stop()
    assert one.lines == ["told"]
    assert not is_alive(one.ready[0]["pid"])
    assert one.ends == []  # It was stopped on purpose.
    one.supervisor.stop()  # Twice is once.


def test_a_program_that_heeds_nothing_is_killed(start, monkeypatch) -> None:
    monkeypatch.setattr(supervisor_module, "_STOP_S", 0.2)
    one = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)", READY, "time.sleep(1000)")
    wait_for(lambda: one.ready)
    one.supervisor.stop()
    assert not is_alive(one.ready[0]["pid"])


def test_a_token_is_in_its_environment_and_no_other_in_ours(start) -> None:
    one = start("print(json.dumps(dict(os.environ)), flush=True)", token="ab" * 32)
    wait_for(lambda: one.ready)
    assert one.ready[0]["ROSE_TOKEN"] == "ab" * 32
    assert one.ready[0]["PATH"] == os.environ["PATH"]
    assert "ROSE_TOKEN" not in os.environ


def test_a_program_in_the_background_runs_in_spare_time(start) -> None:
    rest = 'print(json.dumps({"is_idle": os.sched_getscheduler(0) == os.SCHED_IDLE}), flush=True)'
    one = start("time.sleep(0.2)", rest, is_background=True)
    wait_for(lambda: one.ready)
    assert one.ready == [{"is_idle": True}]


def test_the_death_of_a_program_is_reported_with_its_last_lines(start) -> None:
    one = start(READY, "print('first', 'last words', sep='\\n', file=sys.stderr)", "os.abort()")
    wait_for(lambda: one.ends)
    assert "SIGABRT" in one.ends[0]
    assert "its last output: last words" in one.ends[0]
    assert one.lines == ["first", "last words"]


def test_each_line_is_handed_on(start) -> None:
    """Also of more than a pipe holds; the last one has no newline."""
    one = start("sys.stderr.write('\\n'.join(str(n) for n in range(100_000)))")
    wait_for(lambda: one.ends)
    assert one.lines == [str(n) for n in range(100_000)]


def test_the_children_of_a_program_end_with_it(start) -> None:
    """Also when it is the program's own doing that it ends, and its own child holds the pipes."""
    one = start(
        "import subprocess",
        "other = subprocess.Popen(['sleep', '1000'])",
        'print(json.dumps({"pid": other.pid}), flush=True)',
    )
    wait_for(lambda: one.ends)
    assert one.order == ["ready", "end"]
    assert "it ended with 0" in one.ends[0]
    wait_for(lambda: not is_alive(one.ready[0]["pid"]))


def test_what_a_program_left_behind_cannot_talk_for_ever(start) -> None:
    """It holds the program's pipe and fills it as fast as it is read."""
    one = start("import subprocess", "subprocess.Popen(['yes'], stdout=sys.stderr)", READY)
    wait_for(lambda: one.ends)
    assert "it ended with 0" in one.ends[0]


def test_a_program_that_is_never_ready_is_killed(start, monkeypatch) -> None:
    monkeypatch.setattr(supervisor_module, "_READY_WITHIN_S", 0.2)
    one = start("time.sleep(1000)")
    wait_for(lambda: one.ends)
    assert one.ready == []
    assert "it was not ready within 0.2 s" in one.ends[0]


def test_a_program_that_closes_its_output_is_minded_on(start) -> None:
    one = start(READY, "os.close(1); os.close(2)", "sys.stdin.readline()", "os._exit(5)")
    wait_for(lambda: one.ready)
    one.say({})
    wait_for(lambda: one.ends)
    assert "it ended with 5" in one.ends[0]


PARENT = """
    import os, sys, time
    from rose_lab.demo.rl.supervisor import Supervisor
    def say(_incarnation, ready, _connection):
        os.write(1, b"%d\\n" % ready["pid"])  # a line at once: two threads say theirs
    command = [sys.executable, "-c", sys.argv[1]]
    # What the parent forks meanwhile must not keep the pipe open either.
    one = Supervisor(lambda _: command, say, print)
    two = Supervisor(lambda _: command, say, print)
    time.sleep(1000)
"""


# A program that imports for long reads nothing, and what it started is in its group.
DEAF = "__import__('subprocess').run(['sleep', '1000'])"


@pytest.mark.parametrize("rest", [UNTIL_STDIN_CLOSES, DEAF])
def test_programs_end_when_their_parent_is_killed(repo, rest: str) -> None:
    """Nothing can be done by the parent any more: the closing of a pipe says it all."""
    child = program(READY, rest)[-1]
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), child],
        stdout=subprocess.PIPE,
        cwd=repo,
        text=True,
    )
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    assert all(map(is_alive, pids))
    parent.kill()
    parent.communicate()
    wait_for(lambda: not any(map(is_alive, pids)))


# ---- the supervisor ------------------------------------------------------------------------------


class Story:
    """What a supervisor told."""

    def __init__(self) -> None:
        self.ready: list[tuple[int, dict]] = []
        self.reasons: list[str] = []
        self.are_final: list[bool] = []

    def on_death(self, reason: str, is_final: bool) -> None:
        self.reasons.append(reason)
        self.are_final.append(is_final)

    def on_ready(self, incarnation: int, ready: dict, _connection: object) -> None:
        self.ready.append((incarnation, ready))


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def supervise(story, monkeypatch) -> Iterator[Callable[..., Supervisor]]:
    monkeypatch.setattr(supervisor_module, "_BACKOFF_S", 0.01)
    with no_thread_is_left(), ExitStack() as stack:

        def open_(make_command, **policy) -> Supervisor:
            supervisor = Supervisor(make_command, story.on_ready, story.on_death, **policy)
            stack.callback(supervisor.stop)
            return supervisor

        yield open_


def living(_incarnation: int) -> list[str]:
    return program(READY, UNTIL_STDIN_CLOSES)


def test_a_killed_program_is_started_again_as_the_next_incarnation(supervise, story) -> None:
    supervisor = supervise(
        lambda incarnation: program(
            f"print(json.dumps({{'n': {incarnation}, 'pid': os.getpid()}}), flush=True)",
            UNTIL_STDIN_CLOSES,
        )
    )
    for incarnation in range(3):
        wait_for(lambda n=incarnation: len(story.ready) == n + 1)
        assert story.ready[-1] == (incarnation, {"n": incarnation, "pid": supervisor.pid})
        supervisor.kill()
        wait_for(lambda n=incarnation: story.are_final == [False] * (n + 1))
    wait_for(lambda: len(story.ready) == 4)
    supervisor.stop()
    assert len(story.reasons) == 3  # To be stopped is no death.
    assert not any(is_alive(ready["pid"]) for _, ready in story.ready)


def test_a_program_that_keeps_dying_is_given_up(supervise, story) -> None:
    supervisor = supervise(lambda _n: program("sys.exit('it hurts')"), restarts_max=2)
    wait_for(lambda: True in story.are_final)
    assert story.are_final == [False, False, True]
    assert "its last output: it hurts; given up after 3 deaths in 60 s" in story.reasons[-1]
    assert story.ready == []
    assert supervisor.pid is None


def test_deaths_are_forgotten_in_time(story, monkeypatch) -> None:
    """Each death is out of the window when the next comes, so there is always another start."""

    class HourlyClock:
        def __init__(self) -> None:
            self.reads = 0

        def now_ns(self) -> int:
            self.reads += 1
            return self.reads * 3600 * 10**9

        def sleep(self, seconds: float) -> None: ...

    monkeypatch.setattr(supervisor_module, "_BACKOFF_S", 0.001)
    with no_thread_is_left():
        supervisor = Supervisor(
            lambda _n: ["/nonexistent/program"],
            story.on_ready,
            story.on_death,
            restarts_max=1,
            clock=HourlyClock(),
        )
        wait_for(lambda: len(story.reasons) > 5)
        supervisor.stop()
    assert not any(story.are_final)
    assert "cannot be started" in story.reasons[0]


def test_a_program_is_stopped_before_it_is_ready(supervise, story) -> None:
    supervisor = supervise(lambda _n: program(UNTIL_STDIN_CLOSES))
    wait_for(lambda: supervisor.pid)
    pid = supervisor.pid
    supervisor.stop()
    assert not is_alive(pid)
    assert story.reasons == story.ready == []


def test_a_program_that_cannot_be_stopped_is_reported_each_time(story, monkeypatch) -> None:
    monkeypatch.setattr(supervisor_module, "_STOP_S", 0.1)
    is_called, may_return = threading.Event(), threading.Event()

    def on_ready(_incarnation: int, _ready: dict, _connection: object) -> None:
        is_called.set()
        assert may_return.wait(LONG_S)

    with no_thread_is_left():
        supervisor = Supervisor(living, on_ready, story.on_death)
        assert is_called.wait(LONG_S)
        for _ in range(2):
            with pytest.raises(DeadlineExceeded, match=r"0\.1 s after it was killed"):
                supervisor.stop()
        may_return.set()
    assert story.reasons == []  # It was stopped on purpose.


def test_a_dead_process_that_the_kernel_does_not_let_go_is_no_reason_to_wait(start, monkeypatch):
    is_reaped, wait = threading.Event(), subprocess.Popen.wait

    def slow_wait(process, timeout=None):
        is_reaped.wait(LONG_S)
        return wait(process, timeout)

    monkeypatch.setattr(supervisor_module, "_STOP_S", 0.1)
    one = start(READY, "time.sleep(1000)")
    wait_for(lambda: one.ready)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", slow_wait)
        with pytest.raises(DeadlineExceeded, match=r"0\.1 s after it was killed"):
            one.supervisor.stop()
        is_reaped.set()
        one.supervisor.stop()
