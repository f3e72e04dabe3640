"""A worker's process and its scheduler's die in every way, and each time the other one copes."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from rose.scheduler import remote as remote_worker
from rose.scheduler.worker import TurnEnd
from rose_lab.demo.rl.supervisor import Supervisor
from tests.node.rig import Program, Scheduler, request
from tests.node.steady_program import DEADLY_SEED
from tests.waiting import wait_for

FAST, SLOW = "0.0005", "0.01"


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch, repo) -> None:
    """The programs are modules of the project."""
    monkeypatch.chdir(repo)


def command(pace_s: str = FAST) -> list[str]:
    return [sys.executable, "-m", "tests.node.steady_program", pace_s]


class Watched(Program):
    """The program of a worker."""

    def __init__(self, pace_s: str) -> None:
        super().__init__(command(pace_s))

    def address(self) -> tuple[str, str]:
        wait_for(lambda: self.ready or self.ends)
        assert not self.ends
        return self.ready[0]["address"], self.ready[0]["token"]


@pytest.fixture
def spawn() -> Iterator[partial[Watched]]:
    with ExitStack() as stack:

        def start(pace_s: str = FAST) -> Watched:
            watched = Watched(pace_s)
            stack.callback(watched.supervisor.stop)
            return watched

        yield start


def test_a_worker_killed_mid_turn_is_lost_once_and_what_it_said_is_kept(spawn, node) -> None:
    worker, scheduler = spawn(SLOW), Scheduler()
    address, token = worker.address()
    remote = node.connect(address, scheduler, token=token)
    asked = [request(number, tokens=100_000) for number in range(4)]
    for one in asked:
        remote.start_turn(one)
    wait_for(lambda: all(len(scheduler.tokens(one.trajectory)) > 3 for one in asked))
    worker.supervisor.kill()
    wait_for(scheduler.losses)
    wait_for(lambda: worker.ends)
    remote.start_turn(request(9))
    remote.close()
    assert len(scheduler.losses()) == 1
    assert scheduler.losses() == scheduler.events[-1:]
    for one in asked:
        scheduler.check_said(one)
        assert scheduler.ends(one.trajectory) == []
        assert len(scheduler.tokens(one.trajectory)) > 3


def test_a_worker_that_is_started_again_goes_on_at_the_token(node) -> None:
    """The whole story: killed, started again by its supervisor, the turn resumed there."""
    ready: list[dict] = []
    supervisor = Supervisor(
        lambda _incarnation: command(SLOW),
        lambda _incarnation, one, _connection: ready.append(one),
        lambda _reason, _is_final: None,
    )
    with ExitStack() as stack:
        stack.callback(supervisor.stop)
        wait_for(lambda: ready)
        before = Scheduler()
        whole = request(1, tokens=40)
        node.connect(ready[0]["address"], before, token=ready[0]["token"]).start_turn(whole)
        wait_for(lambda: len(before.tokens(1)) > 3)
        supervisor.kill()
        wait_for(before.losses)
        said = before.tokens(1)
        wait_for(lambda: len(ready) == 2)
        after = Scheduler()
        rest = request(
            1,
            tokens=whole.max_new_tokens - len(said),
            prompt=(*whole.prompt, *said),
            first_token=len(said),
        )
        node.connect(ready[1]["address"], after, token=ready[1]["token"]).start_turn(rest)
        wait_for(lambda: after.ends(1) == [TurnEnd.FINISHED])
        after.check_said(rest)
        assert len(said) + len(after.tokens(1)) == whole.max_new_tokens


def test_a_frozen_worker_is_lost_though_its_stream_is_open(spawn, node, monkeypatch) -> None:
    monkeypatch.setattr(remote_worker, "SILENCE_MAX_S", 3.0)
    worker, scheduler = spawn(), Scheduler()
    address, token = worker.address()
    remote = node.connect(address, scheduler, token=token)
    remote.start_turn(request(1, tokens=5))
    wait_for(lambda: scheduler.ends(1))
    os.kill(worker.supervisor.pid, signal.SIGSTOP)
    wait_for(scheduler.losses)
    assert "no sign of life for 3.0 s" in scheduler.losses()[0].reason
    worker.supervisor.kill()


SCHEDULER = """
    import sys, time
    from rose.scheduler.remote import RemoteWorker
    from rose.scheduler.worker import WorkerKind
    from tests.node.rig import request
    say = lambda event: print(type(event).__name__, flush=True)
    worker = RemoteWorker(sys.argv[1], sys.argv[2], 1, WorkerKind.DEDICATED, say)
    worker.start_turn(request(1, tokens=10_000_000))
    time.sleep(1000)
"""


def test_a_killed_scheduler_leaves_no_turn_behind_and_another_is_let_in(spawn, node) -> None:
    worker, scheduler = spawn(), Scheduler()
    address, token = worker.address()
    program = [sys.executable, "-c", textwrap.dedent(SCHEDULER), address, token]
    first = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    said = [first.stdout.readline().strip() for _ in range(20)]
    assert said == ["GrantChanged", *["TurnOutput"] * 19]
    first.kill()
    first.communicate()

    def is_let_in() -> bool:
        """Asks until the worker has noticed: it refuses while it believes in the first one."""
        scheduler.events.clear()
        remote = node.connect(address, scheduler, token=token)
        remote.start_turn(request(1, tokens=5))
        wait_for(lambda: scheduler.ends(1) or scheduler.losses())
        return not scheduler.losses()

    wait_for(is_let_in)
    scheduler.check_said(request(1, tokens=5))  # Not one token of the turn before.
    assert scheduler.ends(1) == [TurnEnd.FINISHED]


def test_what_is_said_on_stdin_is_told_to_the_worker(spawn, node) -> None:
    worker, scheduler = spawn(), Scheduler()
    address, token = worker.address()
    node.connect(address, scheduler, token=token)
    wait_for(lambda: scheduler.events)
    worker.say({"nonsense": 1})
    worker.say(["no object"])
    worker.say({"lost": "it was told so"})
    wait_for(scheduler.losses)
    assert scheduler.losses()[0].reason == "it was told so"
    wait_for(lambda: worker.ends)
    said = "\n".join(worker.lines)
    assert "that is nothing to say" in said
    assert "must be a JSON object" in said


def test_sigterm_ends_a_worker_after_its_last_words(spawn, node) -> None:
    worker, scheduler = spawn(), Scheduler()
    address, token = worker.address()
    node.connect(address, scheduler, token=token).start_turn(request(1, tokens=100_000))
    wait_for(lambda: scheduler.tokens(1))
    os.kill(worker.supervisor.pid, signal.SIGTERM)
    wait_for(lambda: worker.ends)
    assert "it ended with 0" in worker.ends[0]
    wait_for(scheduler.losses)
    assert scheduler.losses()[0].reason == "it ended the stream"
    scheduler.check_said(request(1))


def test_a_process_whose_worker_is_lost_ends_so_that_it_can_be_started_again(spawn, node) -> None:
    worker, scheduler = spawn(), Scheduler()
    address, token = worker.address()
    node.connect(address, scheduler, token=token).start_turn(request(1, seed=DEADLY_SEED))
    wait_for(lambda: worker.ends)
    assert "it ended with 1" in worker.ends[0]
    wait_for(scheduler.losses)
    assert [loss.reason for loss in scheduler.losses()] == ["its loop died"]
