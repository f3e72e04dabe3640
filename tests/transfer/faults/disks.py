"""A disk in memory that outlives its process: full, slow, torn and corrupted on request."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from rose.errors import OutOfMemory, Unavailable
from tests.transfer.planted_disk import PlantedDisk

DISK_FAULTS: Final = ("full", "slow", "torn", "die before", "die after")


class VirtualDisk(PlantedDisk):
    """Files by name.

    Args:
        die: ends the process whose disk this is; does not return.
    """

    def __init__(self, die: Callable[[], None]) -> None:
        super().__init__()
        self._die = die
        self._next: str | None = None
        self._rng = Random(0)

    def arm(self, fault: str, number: int) -> None:
        """Let the next change go wrong."""
        self._next, self._rng = fault, Random(number)

    def repair(self) -> None:
        self._next = None

    def rot(self, rng: Random) -> None:
        """Flip a bit of a file at rest."""
        files = sorted(name for name, content in self.files.items() if content)
        if files:
            name = rng.choice(files)
            content = bytearray(self.files[name])
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            self.files[name] = bytes(content)

    def write(self, name: str, parts: Sequence[bytes]) -> None:
        self._change(name, b"", b"".join(parts))

    def extend(self, name: str, first: int, parts: Sequence[bytes]) -> None:
        if name not in self.files:
            raise Unavailable(f"{name} is not there")
        self._change(name, self.files[name][:first], b"".join(parts))

    def remove(self, name: str) -> None:
        if self._due() in {"full", "slow"}:
            raise Unavailable("planted: the disk does not answer")
        self.files.pop(name, None)

    def _change(self, name: str, before: bytes, added: bytes) -> None:
        match self._due():
            case "full":
                raise OutOfMemory("planted: the disk is full")
            case "slow":
                raise Unavailable("planted: the disk is slow")
            case "torn":
                if before:  # a new file is whole or not there
                    self.files[name] = before + added[: self._rng.randint(0, len(added))]
                self._die()
            case "die before":
                self._die()
            case "die after":
                self.files[name] = before + added
                self._die()
        self.files[name] = before + added

    def _due(self) -> str | None:
        fault, self._next = self._next, None
        return fault
