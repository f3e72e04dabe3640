"""The versions of weights that a request accepts, and the versions that generated its tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rose.errors import Unavailable


class VersionConflict(Unavailable):
    """No worker has weights that the request accepts; a retry may succeed after an update."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions of weights that may generate a request's tokens.

    Args:
        at_least: oldest accepted version; None: no limit.
        exact: the only accepted version; None: no such rule.
    """

    at_least: int | None = None
    exact: int | None = None

    @property
    def is_any(self) -> bool:
        """True if every version is accepted."""
        return self.at_least is None and self.exact is None

    def fits(self, version: int) -> bool:
        """Return whether tokens of this version are accepted."""
        if self.exact is not None and version != self.exact:
            return False
        return self.at_least is None or version >= self.at_least

    def conflict(self, there: Iterable[int]) -> VersionConflict:
        """Return an error that names this range, and the versions `there` that workers have."""
        rules = [f"exactly {self.exact}"] if self.exact is not None else []
        rules += [f"at least {self.at_least}"] if self.at_least is not None else []
        found = ", ".join(map(str, sorted(set(there)))) or "none"
        return VersionConflict(
            f"no worker has a weight_version of {' and '.join(rules)}; versions of workers: {found}"
        )


def spans(versions: Sequence[int]) -> list[dict[str, Any]]:
    """Return runs of equal versions in vLLM's format: `version` of the tokens `[start, end)`."""
    found, start = [], 0
    for version, run in groupby(versions):
        end = start + sum(1 for _ in run)
        found.append({"version": str(version), "start": start, "end": end})
        start = end
    return found
