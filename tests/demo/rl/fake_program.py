"""The trainer's program, with weights to a file: `python -m tests.demo.rl.fake_program LOG ...`.

Each line of the file is a version as it was published: incarnation, n, and the SHA-256 of its bits.
"""

import hashlib
import sys
from pathlib import Path

from rose.demo.rl import program


class LoggedWeights:
    """Counts versions, serves nobody."""

    address = "127.0.0.1:1"

    def __init__(self, path: Path, bits, version) -> None:
        self._path = path
        self._incarnation = version.incarnation
        self.version = version.n - 1
        self.publish(bits)

    def publish(self, bits) -> None:
        # Written before anybody can hear of it, and be quick to kill.
        with self._path.open("a") as file:
            sha = hashlib.sha256(bits.tobytes()).hexdigest()
            file.write(f"{self._incarnation} {self.version + 1} {sha}\n")
        self.version += 1

    def traffic(self) -> tuple[int, int]:
        return self.version, 10 * self.version

    def close(self) -> None:
        with self._path.open("a") as file:
            file.write("closed\n")


if __name__ == "__main__":
    program.PublishedWeights = lambda bits, *, version, address, token: LoggedWeights(
        Path(sys.argv[1]), bits, version
    )
    sys.exit(program.main(sys.argv[2]))
