"""Where a receiver gets versions from."""

from typing import Protocol

from rose.transfer.digests import Digest
from rose.transfer.log import VersionLog
from rose.transfer.manifest import Manifest

NOTHING_KNOWN = -1


class Source(Protocol):
    """The log of a publisher as a receiver sees it. One thread calls it."""

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Return the versions that are kept above a number, the oldest first, once there are any.

        Args:
            after_n: -1, or below, for all that are kept.
            timeout_s: the longest wait; what comes back is empty then.

        Raises:
            Unavailable: the publisher cannot be reached.
            CorruptData: what came is no list of manifests.
        """
        ...

    def seed(self, at_least_n: int) -> list[Manifest]:
        """Return a seed of this version or a newer one, if there is one, and what follows it.

        Raises:
            Unavailable: the publisher cannot be reached, or has no room for a seed.
            CorruptData: what came is no list of manifests.
        """
        ...

    def chunk(self, n: int, tile: int, *, is_seed: bool) -> bytes | None:
        """Return a frame, unchecked, or None when it is kept no more.

        Raises:
            Unavailable: the publisher cannot be reached, or broke off.
            CorruptData: what came is no answer.
        """
        ...

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Say what came of a version: whether the digest is the trainer's, and what it is.

        Raises:
            Unavailable: the publisher cannot be reached.
        """
        ...


class InProcessSource:
    """The log itself, for receivers in the publisher's process."""

    def __init__(self, log: VersionLog) -> None:
        self._log = log

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait on the log."""
        return self._log.wait_after(after_n, timeout_s)

    def seed(self, at_least_n: int) -> list[Manifest]:
        """Let the log make one when it has none."""
        return self._log.seed_and_after(at_least_n)

    def chunk(self, n: int, tile: int, *, is_seed: bool) -> bytes | None:
        """Return the frame as the log has it; nothing is copied."""
        return self._log.chunk(n, tile, is_seed=is_seed)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Acknowledge in the log."""
        self._log.acknowledge(receiver, n, is_match=is_match, digest=digest)
