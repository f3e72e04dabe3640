"""Faults on tiny models that follow a publisher: no receiver may hold other bits in silence.

After each fault the receivers follow the newest version. A receiver that then names this version,
but holds other bits, has diverged in silence. Errors, and repairs by the scrub, are no silence.
"""

import itertools
import socket
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import rose
from bench.refit_ranks import Rank
from rose.errors import DeadlineExceeded, InvalidArgument, RoseError, check
from rose.transfer.digests import hexadecimal
from rose.transfer.named import named_rows, views_of
from rose.transfer.plan.tiling import plain_tiling

_SIZES: Final = {"embed": (64, 32), "norm": (7,), "out": (129, 33), "scale": ()}
_TOKEN: Final = "7e" * 32
_SCRUB_S: Final = 0.1
_FOUND_S: Final = 10.0  # much longer than the scrub takes on a busy machine
_SETTLE_S: Final = 60.0
# One of so many faults kills a process, which takes a second to start again.
_KILL_EVERY: Final = 1000


def _tensors() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(size) for name, size in _SIZES.items()}


class _Follower:
    """Tensors of an engine, and their receiver."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.tensors = _tensors()
        self.receive()

    def receive(self) -> None:
        self.receiver = rose.receive(self.tensors, self._address, token=_TOKEN, scrub_s=_SCRUB_S)

    def digest(self) -> str:
        return digest_of(self.tensors)


def digest_of(tensors: dict[str, Any]) -> str:
    """Return the digest of the present bits, as `WeightPublisher.digest` has it."""
    rows = named_rows(tensors)
    tiling = plain_tiling(one.stored for one in rows)
    return hexadecimal(views_of(tiling, {one.stored.name: [one] for one in rows}).digests().total)


class FaultLoop:
    """A trainer and two engines of this process, a third of another process, and faults.

    Args:
        folder: folder for the third engine's memory.
        seed: seed of the choice of faults and of all values.
    """

    def __init__(self, folder: Path, seed: int = 49) -> None:
        self._rng = np.random.default_rng(seed)
        self.faults: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.late: Counter[str] = Counter()  # found by the scrub, after a commit
        self.silent: list[str] = []
        self._model = _tensors()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._publish()
        self._followers = [_Follower(self._address) for _ in range(2)]
        self._folder = folder
        self._process: Rank | None = None

    def run(self, count: int) -> None:
        """Make faults, each of a random kind."""
        shares = {
            self._torn: 0.35,
            self._scribble: 0.3,
            self._move: 0.15,
            self._drop: 0.15,
            self._restart: 0.03,
            self._scribble_unread: 0.02,
        }
        kinds, chances = list(shares), list(shares.values())
        for number in range(count):
            is_kill = number % _KILL_EVERY == _KILL_EVERY // 2
            fault = self._kill if is_kill else kinds[self._rng.choice(len(kinds), p=chances)]
            kind = fault.__name__.strip("_")
            self.faults[kind] += 1
            is_whole = fault()
            self._settle(kind, is_whole=is_whole)

    def close(self) -> None:
        for one in self._followers:
            one.receiver.close()
        self._publisher.close()
        if self._process is not None:
            self._process.end()

    # Each fault returns whether the newest version is the model.

    def _torn(self) -> bool:
        """Another thread writes while `update` reads."""
        stop = threading.Event()
        row = self._model["out"].view(-1)

        def write() -> None:
            for number in itertools.count():
                if stop.is_set():
                    return
                row.fill_(float(number))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            self._publisher.update(self._model)
        except RoseError:
            self.errors["torn"] += 1
            stop.set()
            writer.join(_SETTLE_S)
            self._publisher.update(self._model)
            return True
        finally:
            stop.set()
            writer.join(_SETTLE_S)
        return False

    def _scribble(self) -> bool:
        """Somebody else writes to an engine's tensor, and an update follows."""
        self._write(self._one())
        return self._update()

    def _scribble_unread(self) -> bool:
        """The same, and only the scrub can find it."""
        one = self._one()
        self._follow(one, "scribble_unread")
        before = one.digest()
        self._write(one)
        if one.digest() == before:
            return False
        if self._is_found(one):
            self.late["scribble_unread"] += 1
            self._follow(one, "scribble_unread", at_least=1)
        return False

    def _move(self) -> bool:
        """An engine moves a tensor to other memory."""
        one = self._one()
        moved = one.tensors[self._name()]
        moved.data = moved.data.clone()
        return self._update()

    def _drop(self) -> bool:
        """A receiver ends at any moment, and the next one takes over its tensors."""
        one = self._one()
        self._update()
        time.sleep(self._rng.random() * 3e-3)
        one.receiver.close()
        self._write(one)
        one.receive()
        if self._rng.random() < 0.5:
            one.receiver.close()  # while the first version lands
            one.receive()
        return True

    def _restart(self) -> bool:
        """The trainer's program starts again, at its address, maybe with the same number."""
        before = self._publisher.version
        self._publisher.close()
        self._change()
        self._publish(first_version=before if self._rng.random() < 0.5 else None)
        return True

    def _kill(self) -> bool:
        """The process of an engine is killed in an update; the next one has its memory."""
        file = str(self._folder / "engine")
        if self._process is None:
            self._process = Rank("", follow_in_file, file, self._address)
            self._process.hear()
        self._update()
        time.sleep(self._rng.random() * 10e-3)
        self._process.end()
        self._process = Rank("", follow_in_file, file, self._address)
        while self._process.hear() != self._publisher.newest:
            pass
        if digest_of(_in_file(file)) != self._publisher.digest:
            self.silent.append("kill")
        return True

    def _publish(self, first_version: int | None = None) -> None:
        self._publisher = rose.publish(
            self._model, listen=self._address, token=_TOKEN, first_version=first_version
        )

    def _update(self) -> bool:
        self._change()
        self._publisher.update(self._model)
        return True

    def _change(self) -> None:
        row = self._model[self._name()].view(-1)
        row[int(self._rng.integers(len(row)))] = float(self._rng.normal())

    def _write(self, one: _Follower) -> None:
        row = one.tensors[self._name()].view(-1)
        row[int(self._rng.integers(len(row)))] = float(self._rng.normal())

    def _name(self) -> str:
        return str(self._rng.choice(list(_SIZES)))

    def _one(self) -> _Follower:
        return self._followers[self._rng.integers(len(self._followers))]

    def _settle(self, kind: str, *, is_whole: bool) -> None:
        """Have each receiver follow, and compare the bits."""
        for one in self._followers:
            self._follow(one, kind)
            if self._is_right(one, is_whole=is_whole):
                continue
            if self._is_found(one):
                self.late[kind] += 1
                self._follow(one, kind, at_least=1)
            if not self._is_right(one, is_whole=is_whole):
                self.silent.append(kind)

    def _is_right(self, one: _Follower, *, is_whole: bool) -> bool:
        pairs = [(one.tensors[name], self._model[name]) for name in _SIZES if is_whole]
        return one.digest() == self._publisher.digest and all(torch.equal(*pair) for pair in pairs)

    def _is_found(self, one: _Follower) -> bool:
        """Wait for the scrub to find a tile that was changed after it had read it."""
        end_s = time.monotonic() + _FOUND_S
        while one.receiver.ready is None and one.receiver.version is not None:
            if time.monotonic() > end_s:
                return False
            time.sleep(_SCRUB_S / 20)
        return True

    def _follow(self, one: _Follower, kind: str, *, at_least: int = 0) -> None:
        """Commit until the receiver names the newest version, at least so many times."""
        end_s = time.monotonic() + _SETTLE_S
        commits = 0
        while commits < at_least or one.receiver.held != self._publisher.newest:
            check(time.monotonic() < end_s, f"no version after {kind}: {one.receiver.failure}")
            try:
                one.receiver.wait(1.0)
                commits += one.receiver.commit() is not None
            except DeadlineExceeded:
                continue
            except InvalidArgument:
                self.errors[kind] += 1
                one.receiver.close()
                one.receive()
            except RoseError:
                self.errors[kind] += 1


def _in_file(file: str) -> dict[str, Any]:
    """Return the tensors of the third engine, in memory that outlives it."""
    mapped = np.memmap(file, np.float32, "r+" if Path(file).exists() else "w+", shape=8192)
    tensors, at = {}, 0
    for name, size in _SIZES.items():
        count = int(np.prod(size))
        tensors[name] = mapped[at : at + count].reshape(size)
        at += count
    return tensors


def follow_in_file(line: Connection, file: str, address: str) -> None:
    """Run the third engine until killed; it sends each version that it has committed."""
    with rose.receive(_in_file(file), address, token=_TOKEN) as receiver:
        while True:
            receiver.wait(_SETTLE_S)
            receiver.commit()
            line.send(receiver.held)
