"""Ranks of a tensor-parallel borrower as real processes, with collectives over gloo.

They are forked by a server that has imported torch once, and has no threads.
"""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from rose._core import RankGate, RankGroup, RankVote, Verdict

LONG_MS = 200_000.0  # bounds a hang, no more
WIDTH = 16


@dataclass(frozen=True)
class Work:
    """What each rank does: `steps` steps of `segments` segments with one all_reduce in each."""

    steps: int
    segments: int
    seed: int = 0


@dataclass
class Log:
    """What a rank started, what it was told in the end, and what it computed."""

    started: list[tuple[int, int]] = field(default_factory=list)
    told: str = "PASSED"
    output: list[float] = field(default_factory=list)
    failed: bool = False  # the collective did: a rank was gone


def _join(rank: int, ranks: int, store: str) -> Any:
    """Join the ranks' collectives."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(milliseconds=LONG_MS),
    )
    return torch, distributed


def compute(gate: RankGate | None, rank: int, work: Work, libraries: Any, conn: Connection) -> Log:
    """Run the steps behind `gate`; None for a run without one. Tells `conn` where it is."""
    torch, distributed = libraries
    log = Log()
    generator = torch.Generator().manual_seed(work.seed + 1)
    state = torch.rand(WIDTH, generator=generator)
    mine = torch.rand((WIDTH, WIDTH), generator=generator.manual_seed(work.seed + 2 + rank))
    for step in range(1, work.steps + 1):
        if gate is not None:
            gate.begin_step()
            conn.send(("step", step))
        for index in range(1, work.segments + 1):
            if gate is not None:
                verdict = gate.pass_(timeout_ms=LONG_MS)
                if verdict is not Verdict.PASSED:
                    log.told = verdict.name
                    return log
                log.started.append(gate.passed)
                conn.send(("segment", gate.passed))
            partial = mine @ state
            try:
                distributed.all_reduce(partial)
            except RuntimeError:
                log.failed = True
                if gate is not None:
                    gate.end_step()
                return log
            state = torch.tanh(partial / (index + 1))
        if gate is not None:
            gate.end_step()
    log.output = state.tolist()
    return log


@dataclass(frozen=True)
class Place:
    """Which rank of how many, and where they meet."""

    rank: int
    ranks: int
    store: str


def run_rank(fd: Any, place: Place, work: Work, twice: bool, conn: Connection) -> None:
    """Be one rank: a run without a gate if asked, then one behind it."""
    rank = place.rank
    libraries = _join(rank, place.ranks, place.store)
    alone = compute(None, rank, work, libraries, conn) if twice else None
    gate = RankGate.attach(fd.detach(), rank)
    conn.send(("here", os.getpid()))
    log = compute(gate, rank, work, libraries, conn)
    conn.send(("log", (log, alone)))
    conn.recv()  # Its end would end the group: not before the others have told theirs.


@dataclass
class RankProcess:
    """One rank, seen from the test."""

    process: BaseProcess
    conn: Connection
    seen: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def hear(self, *, timeout_s: float = LONG_MS / 1000) -> tuple[str, Any]:
        """Return the next message; TimeoutError when there is none, EOFError when it is gone."""
        if not self.conn.poll(timeout_s):
            raise TimeoutError
        message: tuple[str, Any] = self.conn.recv()
        self.seen.append(message)
        return message

    def wait_for(self, *wanted: Any) -> Any:
        """Hear until a message begins with `wanted`; return what else it says."""
        while True:
            message = self.hear()
            if message[: len(wanted)] == wanted:
                return message[-1]

    def hear_all(self) -> list[tuple[str, Any]]:
        """Return what was said up to now."""
        while self.conn.poll(0):
            self.hear()
        return self.seen


@contextmanager
def ranks_of(
    fd: int, ranks: int, store: Path, work: Work, *, twice: bool = False
) -> Iterator[list[RankProcess]]:
    """Run all ranks of a group; in the end they are gone."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", __name__])
    running: list[RankProcess] = []
    try:
        for rank in range(ranks):
            mine, theirs = context.Pipe()
            args = (_Handle(fd), Place(rank, ranks, str(store)), work, twice, theirs)
            process = context.Process(target=run_rank, args=args)
            process.start()
            theirs.close()
            running.append(RankProcess(process, mine))
        yield running
    finally:
        for one in running:
            one.process.kill()
            one.process.join()
            one.conn.close()


class _Handle:
    """A descriptor as an argument: it is duplicated when the process starts."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> Any:
        return _received, (DupFd(self._fd),)


def _received(handle: Any) -> Any:
    return handle


def lead(conn: Connection, ranks: int, quantum: int) -> None:
    """Be the leader and all servings in one process, until told to end."""
    from multiprocessing.reduction import send_handle

    from rose._core import RankLeader

    group = RankGroup(ranks=ranks, quantum=quantum)
    votes = [RankVote.attach(group.fileno(), rank) for rank in range(ranks)]
    conn.send(os.getpid())
    send_handle(conn, group.fileno(), conn.recv())
    leader = RankLeader(group, poll_ms=5)
    leader.start()
    while not conn.poll(0):
        seen = votes[0].demand
        for vote in votes:
            if vote.vote_left == 0:
                vote.agree(quantum, expected_epoch=vote.close_epoch)
        votes[0].wait_demand(seen, timeout_ms=5)
    leader.stop()
