"""What a commit needs of the weights it changes."""

from typing import Protocol

from rose.transfer.delta import Delta


class Target(Protocol):
    """Live weights as tiles of a flat row of 16-bit elements. One thread changes them."""

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Change one tile by `delta`, or back; on an error the tile is unchanged."""
        ...

    def digest(self, tile: int) -> tuple[int, int]:
        """Return the tile's part of the digest of all weights."""
        ...
