"""How a porter introduces itself to those that read from it."""

import json
from dataclasses import asdict, dataclass
from typing import Final

from rose.errors import CorruptData

FORMAT: Final = 1
_PEER_MAX: Final = 1 << 16
_NUMBER_MAX: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Introduction:
    """Where a porter is.

    Args:
        pid: its process, in whose network it is reached.
        network: the inode of that network.
        base: the address of its bounce memory, in its process.
        peer: what the library of the other side needs to be told of it.
    """

    pid: int
    network: int
    base: int
    peer: str

    def to_json(self) -> bytes:
        """Return it as it crosses."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Introduction":
        """Read one.

        Raises:
            CorruptData: it is none.
        """
        try:
            said = json.loads(content)
        except ValueError as error:
            raise CorruptData(f"these bytes introduce no porter: {error}") from error
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise CorruptData(f"a porter that introduces itself in format {FORMAT} was expected")
        peer = said.get("peer")
        if not isinstance(peer, str) or len(peer) > _PEER_MAX:
            raise CorruptData("these bytes introduce no porter")
        pid, network, base = (_number(said.get(name)) for name in ("pid", "network", "base"))
        return cls(pid, network, base, peer)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _NUMBER_MAX:
        raise CorruptData("these bytes introduce no porter")
    return value
