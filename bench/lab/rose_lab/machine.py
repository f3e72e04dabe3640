"""The machine card: a description of the measuring machine.

Making the card loads no framework and no C++ core.
"""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import rose


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return round(pages * page_bytes / (1 << 30), 1)


def _version_or_none(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str:
    """Return the commit of rose's checkout, or "" for an installed package."""
    root = Path(rose.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    answer = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip()


def machine_card() -> dict[str, object]:
    """Describe this machine and the libraries that affect a measurement."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": _version_or_none("numpy"),
        "torch": _version_or_none("torch"),
        "transformers": _version_or_none("transformers"),
        "rose": rose.__version__,
        "commit": commit(),
    }
