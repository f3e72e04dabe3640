"""Which suites there are, and which files each of them runs."""

from pathlib import Path
from typing import Final

_PREFIX: Final = "bench_"
# Suites of several files; every other file is a suite of its own.
_FILES: Final = {
    "compute": ("compute", "gate", "latency", "harvest"),
    "memory": ("admission", "blocks", "scrub", "tenants", "weights"),
    "transfer": ("chunks", "codec", "crossing", "update"),
}


def suites() -> list[str]:
    """Return the names that can be asked for."""
    files = Path(__file__).parent.glob(f"{_PREFIX}*.py")
    return sorted({path.stem.removeprefix(_PREFIX) for path in files} | set(_FILES))


def files_of(suite: str) -> list[str]:
    """Return the files that a suite runs, from the root."""
    return [f"bench/{_PREFIX}{name}.py" for name in _FILES.get(suite, (suite,))]
