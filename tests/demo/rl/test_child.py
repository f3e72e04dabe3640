"""A program of rose is started, minded and started again; nothing is ever left behind."""

import math
import os
import select
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rose.demo.rl.child import Child
from rose.demo.rl.supervisor import Death, RestartPolicy, Supervisor
from rose.errors import DeadlineExceeded, InvalidArgument, Unavailable
from tests.node.rig import no_thread_is_left
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


class Watch:
    """What a child's callbacks were told."""

    def __init__(self) -> None:
        self.ready: list[dict] = []
        self.ends: list[str] = []
        self.order: list[str] = []

    def on_ready(self, ready: dict) -> None:
        self.ready.append(ready)
        self.order.append("ready")

    def on_end(self, reason: str) -> None:
        self.ends.append(reason)
        self.order.append("end")


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def start(watch) -> Iterator[Callable[..., Child]]:
    with no_thread_is_left(), ExitStack() as stack:

        def open_(*lines: str, **options) -> Child:
            child = Child(program(*lines), watch.on_ready, on_end=watch.on_end, **options)
            stack.callback(child.stop, patience_s=LONG_S)
            return child

        yield open_


def test_a_child_is_ready_and_ends_when_its_stdin_closes(start, watch) -> None:
    child = start(READY, UNTIL_STDIN_CLOSES, "print('late', flush=True)", "sys.exit(3)")
    wait_for(lambda: watch.ready)
    assert watch.ready == [{"token": "t", "pid": child.pid}]
    child.stop(patience_s=LONG_S)
    assert watch.order == ["ready", "end"]
    assert "it ended with 3" in watch.ends[0]
    assert not is_alive(child.pid)
    child.stop()  # Twice is once.


def test_a_child_that_does_not_heed_its_stdin_is_terminated(start, watch) -> None:
    child = start(READY, "time.sleep(1000)")
    wait_for(lambda: watch.ready)
    child.stop(patience_s=0.1)
    assert "SIGTERM" in watch.ends[0]
    assert not is_alive(child.pid)


def test_a_child_that_heeds_nothing_is_killed(start, watch) -> None:
    child = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)", READY, "time.sleep(1000)")
    wait_for(lambda: watch.ready)
    child.stop(patience_s=0.1)
    assert "SIGKILL" in watch.ends[0]
    assert not is_alive(child.pid)


def test_a_death_is_noticed_and_told_with_its_last_words(start, watch) -> None:
    child = start(READY, "print('first', 'last words', sep='\\n', file=sys.stderr)", "os.abort()")
    wait_for(lambda: watch.ends)
    assert "SIGABRT" in watch.ends[0]
    assert "it last said: last words" in watch.ends[0]
    assert child.last_lines() == "first\nlast words"


def test_the_last_lines_are_kept_and_each_is_handed_on(start, watch) -> None:
    lines = []
    child = start("sys.stderr.write('\\n'.join(str(n) for n in range(1000)))", on_line=lines.append)
    wait_for(lambda: watch.ends)
    assert lines == [str(n) for n in range(1000)]  # The last one has no newline.
    assert child.last_lines() == "\n".join(lines[-20:])


def test_a_child_is_killed_at_once(start, watch) -> None:
    child = start(READY, UNTIL_STDIN_CLOSES)
    wait_for(lambda: watch.ready)
    child.kill("a test wanted it so")
    wait_for(lambda: watch.ends)
    assert "a test wanted it so; it ended by SIGKILL" in watch.ends[0]
    child.kill()  # Its number may be somebody else's by now: nobody is signalled.
    assert len(watch.ends) == 1


def test_what_a_child_started_goes_with_it(start, watch) -> None:
    """Also when it is the child's own doing that it ends, and its own child holds the pipes."""
    start(
        "import subprocess",
        "other = subprocess.Popen(['sleep', '1000'])",
        'print(json.dumps({"pid": other.pid}), flush=True)',
        "sys.stdin.readline()",
    ).stop(patience_s=LONG_S)
    assert watch.order == ["ready", "end"]
    assert "it ended with 0" in watch.ends[0]
    wait_for(lambda: not is_alive(watch.ready[0]["pid"]))


def test_what_a_child_left_behind_cannot_talk_for_ever(start, watch) -> None:
    """It holds the child's pipe and fills it as fast as it is read."""
    start(
        "import subprocess",
        "subprocess.Popen(['yes'], stdout=sys.stderr)",
        READY,
    )
    wait_for(lambda: watch.ends)
    assert "it ended with 0" in watch.ends[0]


def test_a_child_that_is_never_ready_is_killed(start, watch) -> None:
    start("time.sleep(1000)", ready_within_s=0.2)
    wait_for(lambda: watch.ends)
    assert watch.ready == []
    assert "it was not ready within 0.2 s" in watch.ends[0]


@pytest.mark.parametrize("line", ["'hello'", "'[1]'", "''", "'{'", "'x' * 200_000"])
def test_a_first_line_that_is_no_object_is_a_death(start, watch, line: str) -> None:
    start(f"print({line}, flush=True)", READY, UNTIL_STDIN_CLOSES)
    wait_for(lambda: watch.ends)
    assert watch.ready == []
    assert "no JSON object" in watch.ends[0]


def test_a_child_that_ends_before_it_is_ready_says_why(start, watch) -> None:
    start("sys.exit('no such model')")
    wait_for(lambda: watch.ends)
    assert watch.ready == []
    assert watch.ends[0].endswith("it ended with 1; it last said: no such model")


class Late(subprocess.Popen):
    """A start that takes so long that the program says or closes something meanwhile."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        assert select.select([self.stderr], [], [], LONG_S)[0]


@pytest.mark.parametrize("length", [1, 1 << 20])
@pytest.mark.parametrize(
    "lines",
    [[], ["os.close(0)", "print('deaf', file=sys.stderr)", "time.sleep(0.1)"]],
    ids=["dead", "deaf"],
)
def test_the_end_of_a_child_that_does_not_take_its_first_line_is_told(
    start, watch, monkeypatch, lines: list[str], length: int
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Late)
    start(*lines, "sys.exit(3)", first_line="x" * length)
    wait_for(lambda: watch.ends)
    assert "it ended with 3" in watch.ends[0]


def test_the_end_of_a_child_that_dies_of_a_part_of_its_first_line_is_told(start, watch) -> None:
    start("sys.stdin.read(10)", "sys.exit(3)", first_line="x" * (1 << 20))
    wait_for(lambda: watch.ends)
    assert "it ended with 3" in watch.ends[0]


def test_a_child_that_talks_on_is_not_held_up(start, watch) -> None:
    """More than a pipe holds, on both: nobody reads it, and it must not block on that."""
    start(READY, "for _ in range(300): print('x' * 1000); print('y' * 1000, file=sys.stderr)")
    wait_for(lambda: watch.ends)
    assert "it ended with 0" in watch.ends[0]


def test_a_callback_may_stop_its_child() -> None:
    with no_thread_is_left():
        made, ended = threading.Event(), threading.Event()

        def on_ready(_ready: dict) -> None:
            assert made.wait(LONG_S)
            child.stop()

        child = Child(
            program(READY, UNTIL_STDIN_CLOSES), on_ready, on_end=lambda _reason: ended.set()
        )
        made.set()
        assert ended.wait(LONG_S)


def test_the_end_is_told_even_when_a_callback_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    ended = threading.Event()

    def on_ready(_ready: dict) -> None:
        raise RuntimeError("a bug of whoever minds it")

    with no_thread_is_left():
        Child(program(READY, UNTIL_STDIN_CLOSES), on_ready, on_end=lambda _reason: ended.set())
        assert ended.wait(LONG_S)


def test_a_program_that_does_not_exist_is_an_error_of_the_system() -> None:
    with no_thread_is_left(), pytest.raises(FileNotFoundError):
        Child(["/nonexistent/program"], print, on_end=print)


PARENT = """
    import os, sys, time
    from rose.demo.rl.child import Child
    def say(ready):
        os.write(1, b"%d\\n" % ready["pid"])  # a line at once: two threads say theirs
    command = [sys.executable, "-c", sys.argv[1]]
    # What the parent forks meanwhile must not keep the pipe open either.
    one = Child(command, say, on_end=print)
    two = Child(command, say, on_end=print)
    time.sleep(1000)
"""


# A program that imports for long reads nothing, and what it started is in its group.
DEAF = "__import__('subprocess').run(['sleep', '1000'])"


@pytest.mark.parametrize("rest", [UNTIL_STDIN_CLOSES, DEAF])
def test_children_end_when_their_parent_is_killed(repo, rest: str) -> None:
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
        self.deaths: list[Death] = []

    def on_ready(self, incarnation: int, ready: dict) -> None:
        self.ready.append((incarnation, ready))


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def supervise(story) -> Iterator[Callable[..., Supervisor]]:
    with no_thread_is_left(), ExitStack() as stack:

        def open_(make_command, **policy) -> Supervisor:
            supervisor = Supervisor(
                make_command,
                story.on_ready,
                story.deaths.append,
                policy=RestartPolicy(**{"backoff_s": 0.01, **policy}),
            )
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
        wait_for(lambda n=incarnation: len(story.deaths) == n + 1)
        assert story.deaths[-1].incarnation == incarnation
        assert not story.deaths[-1].is_final
    wait_for(lambda: len(story.ready) == 4)
    supervisor.stop()
    assert len(story.deaths) == 3  # To be stopped is no death.
    assert not any(is_alive(ready["pid"]) for _, ready in story.ready)


def test_a_program_that_keeps_dying_is_given_up(supervise, story) -> None:
    supervisor = supervise(lambda _n: program("sys.exit('it hurts')"), restarts_max=2)
    wait_for(lambda: story.deaths and story.deaths[-1].is_final)
    assert [death.is_final for death in story.deaths] == [False, False, True]
    assert "it last said: it hurts; given up after 3 deaths in 60.0 s" in story.deaths[-1].reason
    assert story.ready == []
    assert supervisor.pid is None


def test_deaths_are_forgotten_in_time(supervise, story) -> None:
    """Each death is out of the window when the next comes, so there is always another start."""

    class HourlyClock:
        def __init__(self) -> None:
            self.reads = 0

        def now_ns(self) -> int:
            self.reads += 1
            return self.reads * 3600 * 10**9

        def sleep(self, seconds: float) -> None: ...

    with no_thread_is_left():
        supervisor = Supervisor(
            lambda _n: ["/nonexistent/program"],
            story.on_ready,
            story.deaths.append,
            policy=RestartPolicy(restarts_max=1, backoff_s=0.001),
            clock=HourlyClock(),
        )
        wait_for(lambda: len(story.deaths) > 5)
        supervisor.stop()
    assert not any(death.is_final for death in story.deaths)
    assert "cannot be started" in story.deaths[0].reason


def test_a_program_is_stopped_in_its_backoff(supervise, story) -> None:
    supervisor = supervise(
        lambda _n: ["/nonexistent/program"], backoff_s=1000.0, backoff_max_s=1000.0
    )
    wait_for(lambda: story.deaths)
    supervisor.stop()  # The fixture sees that no thread is left.
    assert len(story.deaths) == 1


def test_a_program_is_stopped_before_it_is_ready(supervise, story) -> None:
    supervisor = supervise(lambda _n: program(UNTIL_STDIN_CLOSES))
    wait_for(lambda: supervisor.pid)
    pid = supervisor.pid
    supervisor.stop()
    assert not is_alive(pid)
    assert story.deaths == story.ready == []


def test_a_program_that_cannot_be_stopped_is_said_each_time(story) -> None:
    is_called, may_return = threading.Event(), threading.Event()

    def on_ready(_incarnation: int, _ready: dict) -> None:
        is_called.set()
        assert may_return.wait(LONG_S)

    with no_thread_is_left():
        supervisor = Supervisor(
            living, on_ready, story.deaths.append, policy=RestartPolicy(stop_s=0.1)
        )
        assert is_called.wait(LONG_S)
        with pytest.raises(DeadlineExceeded):
            supervisor.stop()
        wait_for(lambda: "rose-supervisor" not in {one.name for one in threading.enumerate()})
        with pytest.raises(DeadlineExceeded, match="s after it was killed"):
            supervisor.stop()
        may_return.set()
    assert story.deaths == []  # It was stopped on purpose.


def test_a_child_that_does_not_end_after_its_death_is_given_up(story, monkeypatch) -> None:
    def late(_child: Child, *, patience_s: float) -> None:
        raise DeadlineExceeded(f"it is there after {patience_s} s")

    monkeypatch.setattr(Child, "stop", late)
    with no_thread_is_left():
        supervisor = Supervisor(
            lambda _n: program("sys.exit(1)"), story.on_ready, story.deaths.append
        )
        wait_for(lambda: story.deaths)
        assert story.deaths == [Death(0, "it is there after 10.0 s", is_final=True)]
        with pytest.raises(DeadlineExceeded, match="it is there"):
            supervisor.stop()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("restarts_max", -1),
        ("restarts_max", 1.5),
        ("restarts_max", 1001),  # The pause would be of more than a number holds.
        ("window_s", 0.0),
        ("window_s", math.inf),
        ("backoff_s", -0.1),
        ("backoff_s", math.nan),
        ("backoff_max_s", -1.0),
        ("ready_within_s", math.nan),
        ("ready_within_s", 3e6),  # The thread that waits would die of it.
        ("stop_s", 0.0),
        ("stop_s", -1.0),
    ],
)
def test_a_policy_that_means_nothing_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=rf"RestartPolicy\({name}={value}\) is out of range"):
        RestartPolicy(**{name: value})


def test_a_program_may_be_given_up_at_once_or_started_again_at_once(supervise, story) -> None:
    supervise(lambda _n: program("sys.exit(1)"), restarts_max=0, backoff_s=0, backoff_max_s=0)
    wait_for(lambda: story.deaths)
    assert story.deaths[0].is_final


def test_what_the_terminal_signals_to_its_parent_does_not_reach_it(supervise, story) -> None:
    supervise(living)
    wait_for(lambda: story.ready)
    pid = story.ready[0][1]["pid"]
    assert os.getpgid(pid) == pid != os.getpgid(0)
    assert os.getsid(pid) == pid


def test_what_nobody_reads_is_unavailable_and_never_waited_for(start, watch) -> None:
    child = start(READY, "time.sleep(1000)")
    wait_for(lambda: watch.ready)

    def say_more_than_a_pipe_holds() -> None:
        for _ in range(100):
            child.say({"words": "x" * 4000})

    with pytest.raises(Unavailable, match="does not read"):
        say_more_than_a_pipe_holds()
    with pytest.raises(InvalidArgument, match="the most is 4096"):
        child.say({"words": "x" * 5000})
    child.kill()
