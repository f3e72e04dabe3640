"""The suites, and the files that each of them runs."""

from pathlib import Path
from typing import Final

_PREFIX: Final = "bench_"
_ROOT: Final = Path(__file__).resolve().parent.parent
_FOLDERS: Final = ("bench", "bench/lab/suites")
# Suites of several files; every other file is a separate suite.
_FILES: Final = {
    "compute": ("compute", "gate", "latency"),
    "memory": ("admission", "blocks", "scrub", "tenants"),
    "transfer": ("chunks", "codec", "crossing", "update", "weights"),
}


def suites() -> list[str]:
    """Return the names of all suites."""
    files = (path for folder in _FOLDERS for path in (_ROOT / folder).glob(f"{_PREFIX}*.py"))
    return sorted({path.stem.removeprefix(_PREFIX) for path in files} | set(_FILES))


def files_of(suite: str) -> list[str]:
    """Return the files of a suite, relative to the root."""
    names = _FILES.get(suite, (suite,))
    files = (f"{folder}/{_PREFIX}{name}.py" for name in names for folder in _FOLDERS)
    return [file for file in files if (_ROOT / file).exists()]
