"""The suites, and the files that each of them runs."""

from pathlib import Path
from typing import Final

_PREFIX: Final = "bench_"
# Suites of several files; every other file is a separate suite.
_FILES: Final = {
    "compute": ("compute", "gate", "latency", "harvest"),
    "memory": ("admission", "blocks", "scrub", "tenants"),
    "transfer": ("chunks", "codec", "crossing", "update"),
}


def suites() -> list[str]:
    """Return the names of all suites."""
    files = Path(__file__).parent.glob(f"{_PREFIX}*.py")
    return sorted({path.stem.removeprefix(_PREFIX) for path in files} | set(_FILES))


def files_of(suite: str) -> list[str]:
    """Return the files of a suite, relative to the root."""
    return [f"bench/{_PREFIX}{name}.py" for name in _FILES.get(suite, (suite,))]
