"""What the owners of serving allow: nothing at all, or less at some time of the day."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rose.errors import InvalidArgument

MINUTES_PER_DAY: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class DayCap:
    """At most so much may be lent between two times of the day.

    Args:
        from_minute: of the day, 0 to 1439, in the time zone that the caller decides in.
        until_minute: first minute after it; before `from_minute` the cap spans midnight, equal to
            it the whole day.
        share_max: of a device's KV pool, 0 to 1.
    """

    from_minute: int
    until_minute: int
    share_max: float

    def __post_init__(self) -> None:
        """Refuse what is no time or no share.

        Raises:
            InvalidArgument: a value is out of its range.
        """
        for name in ("from_minute", "until_minute"):
            if not 0 <= getattr(self, name) < MINUTES_PER_DAY:
                raise InvalidArgument(f"DayCap({name}={getattr(self, name)}) is no minute of a day")
        if not 0 <= self.share_max <= 1:
            raise InvalidArgument(f"DayCap(share_max={self.share_max}) is no share")

    def holds_at(self, minute: int) -> bool:
        """Whether the cap is in force in this minute of the day."""
        if self.from_minute < self.until_minute:
            return self.from_minute <= minute < self.until_minute
        return minute >= self.from_minute or minute < self.until_minute


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """What one owner allows; an owner without rules allows everything.

    Args:
        owner: as devices name it.
        is_out: nothing of theirs is lent.
        caps: the lowest that is in force counts.
    """

    owner: str
    is_out: bool = False
    caps: tuple[DayCap, ...] = ()

    def share_at(self, minute: int) -> float:
        """Return the share of a pool that may be lent in this minute of the day."""
        if self.is_out:
            return 0.0
        return min([1.0, *(cap.share_max for cap in self.caps if cap.holds_at(minute))])


def by_owner(rules: Iterable[OwnerRules]) -> dict[str, OwnerRules]:
    """Return the rules of each owner.

    Raises:
        InvalidArgument: an owner has two.
    """
    found: dict[str, OwnerRules] = {}
    for one in rules:
        if one.owner in found:
            raise InvalidArgument(f"owner {one.owner} has two sets of rules; give one")
        found[one.owner] = one
    return found
