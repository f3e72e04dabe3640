"""How the relays of a set stand: who is asked, who is left out for a while, and who lied."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from rose.clock import Clock
from rose.units import NS_PER_S

BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0

Told: TypeAlias = Callable[[int, str], None]


@dataclass(slots=True)
class _One:
    out_until_ns: int = 0
    pause_s: float = 0.0
    is_liar: bool = False


class Standing:
    """Leaves relays out that failed, for longer each time, and asks them again later.

    One that lied is left out for the longest time at once, and each time. It is told of once.

    Args:
        count: of relays.
        clock: of the pauses.
        on_liar: called with a relay and what it did, the first time that it lies.
        backoff_s: the first pause.
        backoff_max_s: the longest.
    """

    def __init__(
        self,
        count: int,
        clock: Clock,
        on_liar: Told,
        *,
        backoff_s: float = BACKOFF_S,
        backoff_max_s: float = BACKOFF_MAX_S,
    ) -> None:
        self._clock = clock
        self._on_liar = on_liar
        self._backoff_s, self._backoff_max_s = backoff_s, backoff_max_s
        self._relays = [_One() for _ in range(count)]

    def present(self) -> list[int]:
        """Return who is asked, ascending; those who never lied first."""
        now_ns = self._clock.now_ns()
        there = [at for at, one in enumerate(self._relays) if one.out_until_ns <= now_ns]
        return sorted(there, key=lambda at: self._relays[at].is_liar)

    def is_liar(self, relay: int) -> bool:
        """Return whether it ever lied."""
        return self._relays[relay].is_liar

    def answered(self, relay: int) -> None:
        """Note that it did what it should."""
        self._relays[relay].pause_s = 0.0

    def failed(self, relay: int) -> None:
        """Leave it out, for twice as long as last time."""
        one = self._relays[relay]
        one.pause_s = min(max(2 * one.pause_s, self._backoff_s), self._backoff_max_s)
        self._leave_out(one)

    def lied(self, relay: int, what: str) -> None:
        """Leave it out for long."""
        one = self._relays[relay]
        one.pause_s = self._backoff_max_s
        self._leave_out(one)
        if not one.is_liar:
            one.is_liar = True
            self._on_liar(relay, what)

    def _leave_out(self, one: _One) -> None:
        one.out_until_ns = self._clock.now_ns() + int(one.pause_s * NS_PER_S)
