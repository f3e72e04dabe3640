"""Kill ranks of a trainer and of an engine at random; at the end all must hold one version.

Run as a program: `python -m tests.engines.shards.killed FOLDER KILLS SEED`. It imports torch once
and forks the ranks. A killed rank of the engine is started again alone. A killed rank of the
trainer takes the other one with it, as `torchrun` does, and the new trainer publishes another run.
"""

import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import rose
from rose.errors import RoseError
from rose.transfer.sharded.shards import Shards
from tests.engines.shards.two_by_two import (
    FusedEngine,
    is_loaded,
    joined_group,
    sharded,
    step,
    whole_of,
)

RANKS = 2
TOKEN = "ef" * 32
LONG_S = 120.0


class World:
    """Files by which the ranks and the program that kills them tell each other what happened."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.stop, self.final = folder / "stop", folder / "final"
        self.pids: dict[str, int] = {}
        self.trainers = 0

    # ---- the ranks

    def train(self, life: int, rank: int) -> None:
        joined_group(self.folder / f"store{life}", rank, RANKS)
        model = sharded(RANKS, seed=life)
        shards = Shards(rank, RANKS, within_s=LONG_S)
        with rose.publish(model, shards=shards, listen=self.address, token=TOKEN) as publisher:
            while not self._all_stop():
                step(model)
                publisher.update(model)
                self.note(f"trainer{rank}", publisher.version)
                time.sleep(0.05)
            whole = whole_of(model)
            while True:  # until it is killed; an engine that joins late may begin a version
                if rank == 0:
                    last = publisher.version, publisher.digest, whole
                    torch.save(last, self.folder / "saving")
                    (self.folder / "saving").rename(self.final)
                time.sleep(1.0)

    def _all_stop(self) -> bool:
        """Return whether all ranks of the trainer stop before their next step."""
        agreed = torch.tensor([int(self.stop.exists())])
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
        return bool(agreed.item())

    def follow(self, rank: int) -> None:
        engine = FusedEngine(rank, RANKS, converts=True)
        loader = engine.load_weights
        shards = Shards(rank, RANKS, "engine", loader, within_s=LONG_S, barrier_s=10.0)
        with rose.receive(engine, self.address, shards=shards, token=TOKEN) as receiver:
            while True:
                try:
                    receiver.wait(5.0)
                    receiver.commit()
                    self.note(f"engine{rank}", receiver.version)
                except RoseError as error:
                    self.note(f"errors{rank}", str(error))
                if self.final.exists():
                    n, digest, whole = torch.load(self.final)
                    if (receiver.version, receiver.digest) == (n, digest):
                        is_same = is_loaded(engine, whole, converts=True)
                        self.note(f"result{rank}", [digest, is_same])

    def note(self, name: str, what: object) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(what) + "\n")

    # ---- the program that kills them

    def lines(self, name: str) -> int:
        path = self.folder / name
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def start(self, name: str, work: Callable[[], None]) -> None:
        if (child := os.fork()) == 0:
            try:
                torch.manual_seed(os.getpid())
                work()
            finally:
                sys.stderr.flush()
                os._exit(1)
        self.pids[name] = child

    def start_trainer(self) -> None:
        self.trainers += 1
        for rank in range(RANKS):
            self.start(f"trainer{rank}", partial(self.train, self.trainers, rank))

    def kill(self, name: str) -> None:
        child = self.pids.pop(name)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def kill_one(self) -> None:
        victim = self.chance.choice(sorted(self.pids))
        self.kill(victim)
        if victim.startswith("trainer"):
            other = f"trainer{1 - int(victim[-1])}"
            self.kill(other)
            self.start_trainer()
        else:
            self.start(victim, partial(self.follow, int(victim[-1])))

    def eventually(self, is_so: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + LONG_S
        while not is_so():
            for name, child in self.pids.items():
                if os.waitpid(child, os.WNOHANG)[0]:
                    del self.pids[name]
                    raise SystemExit(f"{name} ended by itself")
            if time.monotonic() > until:
                raise SystemExit(f"it never came to this: {what}")
            time.sleep(0.02)

    def progress(self) -> None:
        """Wait until all ranks of the engine have committed again."""
        names = [f"engine{rank}" for rank in range(RANKS)]
        before = {name: self.lines(name) for name in names}
        self.eventually(
            lambda: all(self.lines(name) > before[name] for name in names), "a commit of all ranks"
        )

    def run(self, kills: int) -> None:
        self.start_trainer()
        for rank in range(RANKS):
            self.start(f"engine{rank}", partial(self.follow, rank))
        for _ in range(kills):
            if self.chance.random() < 0.7:  # otherwise several die within one recovery
                self.progress()
            time.sleep(self.chance.random() * 0.3)
            self.kill_one()
        self.stop.touch()
        self.eventually(
            lambda: all(self.lines(f"result{rank}") for rank in range(RANKS)), "one digest"
        )


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    world = World(folder, seed)
    try:
        world.run(kills)
    finally:
        for name in list(world.pids):
            world.kill(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
