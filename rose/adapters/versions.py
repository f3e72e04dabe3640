"""The versions that generated the tokens of a sequence, in vLLM's format."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any


def spans(versions: Sequence[int]) -> list[dict[str, Any]]:
    """Return runs of equal versions in vLLM's format: `version` of the tokens `[start, end)`."""
    found, start = [], 0
    for version, run in groupby(versions):
        end = start + sum(1 for _ in run)
        found.append({"version": str(version), "start": start, "end": end})
        start = end
    return found
