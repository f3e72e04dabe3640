"""The RL loop runs, and goes on whatever dies: one rig, to which everything happens."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rose.scheduler.events import Consumed
from rose.scheduler.worker import WorkerKind
from rose.transfer.digests import TileDigests, hexadecimal
from rose_lab.demo.rl import supervisor
from rose_lab.demo.rl.rl_loop import DEDICATED, RELAY, TRAINER
from rose_lab.demo.rl.trajectory import Trajectory
from tests.engines.intact import is_intact
from tests.lab.demo.rl.rl_loop_rig import RlLoopRig
from tests.warm import Start

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, warm: Start) -> Iterator[RlLoopRig]:
    started = SimpleNamespace(Popen=warm, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "subprocess", started)
        with RlLoopRig(tmp_path_factory.mktemp("rl_loop")) as rig:
            yield rig


def test_versions_go_round_and_both_workers_say_turns(rig: RlLoopRig) -> None:
    rig.wait(lambda: min(rig.newest(kind) for kind in WorkerKind) >= 2 and rig.finished() >= 16)
    assert all(commit.is_match for commit in rig.rl_loop.history.commits)
    kinds = Counter(turn.worker for turn in rig.rl_loop.history.turns())
    assert min(kinds[kind.value] for kind in WorkerKind) > 0


def test_turns_of_a_revoked_lease_go_on_elsewhere(rig: RlLoopRig) -> None:
    def resumed_on_dedicated() -> int:
        turns = rig.rl_loop.history.turns()
        return sum(turn.is_resumed and turn.worker == "dedicated" for turn in turns)

    before = resumed_on_dedicated()
    while resumed_on_dedicated() == before:
        rig.worker.grant()
        rig.wait_for_more_tokens(WorkerKind.BORROWED)
        rig.worker.revoke()
        rig.wait(lambda: not rig.rl_loop.history.is_granted)
        rig.wait_for_more_finished(4)
    rig.worker.grant()


def test_trajectory_that_the_trainer_refuses_is_let_go_and_no_other(rig: RlLoopRig) -> None:
    loop, told = rig.rl_loop.rollouts, []
    hand_on, send = loop._on_finished, loop.send

    def hand_on_nonsense(trajectory: Trajectory) -> None:
        loop._on_finished = hand_on
        hand_on(replace(trajectory, tokens=(*trajectory.tokens[:-1], 1_000_000)))

    loop.send = lambda news: (told.append(news), send(news))
    loop._on_finished = hand_on_nonsense
    rig.wait(lambda: rig.incidents("refuses a trajectory") == 1)
    assert rig.incidents("token 1000000") == 1
    rig.wait_for_more_finished(8)
    rig.wait(lambda: rig.rl_loop.handoff.waiting == 0)
    loop.send = send
    assert Consumed(1) in told


def test_trainer_that_is_killed_while_it_publishes_comes_back(rig: RlLoopRig) -> None:
    seen = len(rig.rl_loop.history.versions)
    rig.wait(lambda: len(rig.rl_loop.history.versions) > seen)
    rig.rl_loop.programs[TRAINER].kill()  # Receivers have just heard of a version, and pull it.
    rig.wait(lambda: rig.incidents("trainer is back") > 0)
    dead = max(version.n for version in rig.rl_loop.history.versions)
    rig.wait(lambda: min(rig.newest(kind) for kind in WorkerKind) > dead)
    rig.wait_for_more_finished(1)
    rig.wait(lambda: rig.rl_loop.handoff.waiting == 0)


@pytest.mark.slow
def test_relay_that_is_killed_comes_back_and_workers_catch_up(rig: RlLoopRig) -> None:
    seen = len(rig.rl_loop.history.versions)
    rig.wait(lambda: len(rig.rl_loop.history.versions) > seen)
    rig.rl_loop.programs[
        RELAY
    ].kill()  # A receiver has just heard of a version from it, and pulls it.
    for kind in WorkerKind:
        rig.wait_for_more_tokens(kind)  # Nobody waits for it.
    rig.wait(lambda: rig.incidents("relay is back") > 0)
    at_return = rig.rl_loop.handoff.version
    rig.wait(lambda: min(rig.newest(kind) for kind in WorkerKind) > at_return)


@pytest.mark.slow
def test_change_crosses_to_the_relay_once_and_goes_from_there_to_each_worker(
    rig: RlLoopRig,
) -> None:
    moved = rig.rl_loop.relayed
    before = moved.sums()
    for kind in WorkerKind:
        newest = rig.newest(kind)
        rig.wait(lambda kind=kind, newest=newest: rig.newest(kind) > newest)
    rig.wait(lambda: min(now - was for now, was in zip(moved.sums(), before, strict=True)) > 0)
    crossing_bytes, sent_bytes = moved.sums()
    assert sent_bytes > crossing_bytes


def test_dedicated_worker_that_is_killed_mid_turn_comes_back(rig: RlLoopRig) -> None:
    resumed = rig.kill_dedicated_mid_turn()
    rig.wait(lambda: rig.rl_loop.rollouts.counts().resumed > resumed)  # On the borrowed worker.
    rig.wait(lambda: rig.incidents("dedicated worker is back") > 0)
    rig.wait_for_more_tokens(WorkerKind.DEDICATED)


@pytest.mark.slow
def test_dedicated_worker_that_freezes_is_replaced(rig: RlLoopRig) -> None:
    back = rig.incidents("dedicated worker is back")
    os.kill(rig.rl_loop.programs[DEDICATED].pid, signal.SIGSTOP)  # It lives, and says nothing.
    rig.wait(lambda: rig.incidents("dedicated worker is back") > back)
    rig.wait_for_more_tokens(WorkerKind.DEDICATED)


def test_what_is_left_at_the_end_adds_up(rig: RlLoopRig) -> None:
    """The last test: it stops the RL loop."""
    rig.worker.revoke()
    rig.wait(lambda: not rig.rl_loop.history.is_granted)
    rig.rl_loop.stop()
    assert rig.rl_loop.failure() is None
    counts = rig.rl_loop.rollouts.counts()
    assert rig.rl_loop.handoff.refused == 1
    assert rig.rl_loop.lost() == 0
    assert counts.started == counts.finished + counts.dropped + counts.in_flight
    # What the borrower computes with is, bit for bit, the version it is called.
    assert is_intact(rig.weights)
    digests = TileDigests({tile: rig.weights.digest(tile) for tile in range(rig.weights.tiles)})
    assert hexadecimal(digests.total) == rig.rl_loop._receiver.digest
