"""Trainer, relay, a replica of two ranks and one of one, each killed once while versions come.

The trainer is one process, or two ranks that each publish the tiles they own.
"""

import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Self

from rose.transfer.digests import Digest, digest_sum, keyed
from rose.transfer.views import ShardViews
from tests.transfer.shards import PAIR, SINGLE, model, places, plan, shard

LONG_S = 200.0
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Program:
    """One process, to be killed and started again with other arguments."""

    def __init__(self, *arguments: object) -> None:
        self._process: Any = subprocess.Popen(
            [sys.executable, "-m", "tests.transfer.shard_programs", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def is_up(self) -> Self:
        line = self._process.stdout.readline()
        assert line.strip() == "up", line
        return self

    def ask(self) -> list[str]:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._close()

    def end(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait(timeout=LONG_S)
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()


class Run:
    """All processes and what the trainer published."""

    def __init__(self, folder: Path, seed: int, trainers: int) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.trainers, self.plan = trainers, plan(trainers)
        ports = {name: free_port() for name in ("trainer", "part", "relay", "pair", "single")}
        self.at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.n = self.missed = 0
        self.incarnation = 1
        self.digests: dict[int, Digest] = {}
        names = ["trainer", "relay", "pair 0", "pair 1", "single"]
        if trainers == 2:
            names.insert(0, "part")  # rank 0 comes up once it has all parts
        self.programs: dict[str, Program] = {}
        for name in names:
            self.programs[name] = self._make(name)
        for program in self.programs.values():
            program.is_up()

    def _make(self, name: str) -> Program:
        match name.split():
            case ["trainer"]:
                part = [self.at["part"]] if self.trainers == 2 else []
                return Program("train", self.at["trainer"], self.incarnation, self.n, *part)
            case ["part"]:
                return Program("part", self.at["part"])
            case ["relay"]:
                folder = self.folder / "relay"
                folder.mkdir(exist_ok=True)
                return Program("relay", self.at["relay"], self.at["trainer"], folder)
            case ["pair", rank]:
                at = (self.at["pair"], self.trainers)
                return Program("rank", self.at["relay"], PAIR, rank, 2, 0, *at)
            case _:
                at = (self.at["single"], self.trainers)
                return Program("rank", self.at["relay"], SINGLE, 0, 1, 0, *at)

    def restart(self, name: str) -> None:
        self.programs[name].kill()
        self.publish_if_alive(name)
        if name == "trainer":
            # Numbers that a checkpoint had reserved are not used again, nor are incarnations.
            self.incarnation, self.n = self.incarnation + 10, self.n + 3
        self.programs[name] = self._make(name).is_up()

    def publish_if_alive(self, dead: str) -> None:
        if dead != "trainer":
            self.publish()

    def publish(self) -> None:
        """Let the trainer publish; where one of its ranks is away, that step is none."""
        said = self.programs["trainer"].ask()
        if said == ["-"]:
            self.missed += 1
            return
        n, *digest = map(int, said)
        self.n = n
        self.digests[n] = (digest[0], digest[1])

    def wait_newest(self) -> None:
        """Wait until every rank is in use at the newest version, with the trainer's bits."""
        until = time.monotonic() + LONG_S
        for name in ("pair 0", "pair 1", "single"):
            while (said := self.programs[name].ask())[:1] != [str(self.n)]:
                assert time.monotonic() < until, (name, self.n, said[:1])
                time.sleep(0.05)
        self.check_digests()

    def check_digests(self) -> None:
        found: dict[int, set[Digest]] = {}
        for name, replica in (("pair 0", PAIR), ("pair 1", PAIR), ("single", SINGLE)):
            said, *numbers = self.programs[name].ask()
            assert said == str(self.n)
            rank = int(name[-1]) if replica == PAIR else 0
            parts = {
                int(tile): (int(one), int(two))
                for tile, one, two in zip(*(iter(numbers),) * 3, strict=True)
            }
            memory = shard(model(self.n), rank, 2 if replica == PAIR else 1)
            assert parts == dict(_digests(ShardViews(places(self.plan, replica, rank, memory))))
            for tile, digest in parts.items():
                found.setdefault(tile, set()).add(digest)
        # Whoever holds which tile: together they are what the trainer signed.
        assert {len(digests) for digests in found.values()} == {1}
        total = digest_sum(keyed(tile, next(iter(digests))) for tile, digests in found.items())
        assert total == self.digests[self.n]

    def end(self) -> None:
        for program in self.programs.values():
            program.end()


def _digests(views: ShardViews) -> Iterator[tuple[int, Digest]]:
    return ((tile, views.digest(tile)) for tile in views.tiles)


SEEDS = [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 11))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("trainers", [1, 2])
def test_every_process_is_killed_once_and_all_end_at_what_the_trainer_has(
    tmp_path: Path, trainers: int, seed: int
) -> None:
    run = Run(tmp_path, seed, trainers)
    try:
        run.publish()
        run.wait_newest()
        order = list(run.programs)
        run.rng.shuffle(order)
        for name in order:
            for _ in range(run.rng.randint(0, 2)):
                run.publish()
                time.sleep(run.rng.uniform(0, 0.05))
            run.restart(name)
            run.publish()
        run.publish()
        run.wait_newest()
    finally:
        run.end()
    # While the second rank was away nothing was published, and the others went on.
    assert run.missed >= (trainers == 2)
    assert trainers == 2 or run.missed == 0
