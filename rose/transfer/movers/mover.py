"""What a porter wants of the library that carries."""

from typing import Protocol


class Mover(Protocol):
    """A library over one bounce memory. One thread calls it, in a porter: it may block, or crash.

    A read that fails with an error of the library ends the porter, whose last words are then the
    reason: after such an error nobody can say what state the library is in.
    """

    @property
    def peer(self) -> str:
        """Return what a mover of the same kind is told to read from here."""
        ...

    @property
    def poll_s(self) -> float | None:
        """Return how often `progress` must be called while others read; None: it has threads."""
        ...

    def progress(self) -> None:
        """Let others read on."""
        ...

    def read(self, peer: str, at: int, nbytes: int) -> bool:
        """Read from another's bounce memory to the beginning of our own.

        Args:
            peer: the other one.
            at: address there.
            nbytes: how much.

        Returns:
            Whether all of it came.
        """
        ...
