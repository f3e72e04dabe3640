"""The versions of weights that a turn accepts."""

from collections.abc import Iterable

import msgspec

from rose.errors import InvalidArgument, Unavailable
from rose.scheduler.checks import COUNT_MAX, Count, check_fields


class VersionConflict(Unavailable):
    """No worker has weights that the request accepts; a retry may succeed after an update."""


class VersionRange(msgspec.Struct, frozen=True, array_like=True):
    """Versions of weights that may generate a turn's tokens; None: no such rule.

    Args:
        at_least: oldest accepted version.
        exact: the only accepted version.
        at_most: newest accepted version.
    """

    at_least: Count | None = None
    exact: Count | None = None
    at_most: Count | None = None

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            InvalidArgument: a field is out of range, or no version fits all of them.
        """
        check_fields(self)
        if self.low > self.high:
            raise InvalidArgument(f"no weight_version can be {self}")

    @property
    def low(self) -> int:
        """Oldest accepted version."""
        return max(self.at_least or 0, self.exact or 0)

    @property
    def high(self) -> int:
        """Newest accepted version; `COUNT_MAX` without a limit."""
        limits = [one for one in (self.exact, self.at_most) if one is not None]
        return min(limits, default=COUNT_MAX)

    def fits(self, version: int) -> bool:
        """Return whether tokens of this version are accepted."""
        return self.low <= version <= self.high

    def __str__(self) -> str:
        """Return the rules in words."""
        rules = [f"exactly {self.exact}"] if self.exact is not None else []
        rules += [f"at least {self.at_least}"] if self.at_least is not None else []
        rules += [f"at most {self.at_most}"] if self.at_most is not None else []
        return " and ".join(rules) or "any"

    def conflict(self, there: Iterable[int]) -> VersionConflict:
        """Return an error that names this range, and the versions `there` that workers have."""
        found = ", ".join(map(str, sorted(set(there)))) or "none"
        return VersionConflict(
            f"no worker has a weight_version of {self}; versions of workers: {found}"
        )


ANY: VersionRange = VersionRange()
