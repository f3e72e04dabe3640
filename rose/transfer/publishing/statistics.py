"""What publishing costs: bytes sent beside the bytes that dense weights would have been."""

from dataclasses import dataclass
from typing import Final

ELEMENT_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """One version, over all of its receivers.

    Args:
        n: of the version.
        count: elements of the weights.
        changed: elements that its delta changes.
        packed_bytes: of its chunks, each once.
        sent_bytes: of the chunks that were handed out, seeds of this version included.
        receivers: how many answered for it.
        matched: how many of them have the digest of the trainer.
    """

    n: int
    count: int
    changed: int
    packed_bytes: int
    sent_bytes: int
    receivers: int
    matched: int

    @property
    def density(self) -> float:
        """Return the share of elements that change, 0 to 1."""
        return self.changed / self.count if self.count else 0.0

    @property
    def dense_bytes(self) -> int:
        """Return what whole weights would have been for the receivers that answered."""
        return self.receivers * ELEMENT_BYTES * self.count


@dataclass(frozen=True, slots=True)
class TransferStatistics:
    """All versions since the log was made, also those that it forgot.

    Args:
        versions: published; what the log began with is none.
        seeds: made.
        sent_bytes: of all chunks handed out.
        dense_bytes: of whole weights, for each answer of a receiver for a version.
        answers: of receivers for versions.
        matched: answers with the digest of the trainer.
    """

    versions: int = 0
    seeds: int = 0
    sent_bytes: int = 0
    dense_bytes: int = 0
    answers: int = 0
    matched: int = 0
