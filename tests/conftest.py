"""What every test shares: the root, how Hypothesis searches, and who runs beside whom.

In a run of several processes (`pytest -n 2 --dist loadfile`, which `make test` is) a file is run by
one of them, and the files of `tests/alone.py` while the others wait.
"""

import json
import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

from tests.alone import is_alone, place, turn

ROOT: Final = Path(__file__).resolve().parents[1]
STARTED: Final = time.monotonic()
# Test processes share the cores already: threads of torch would only wait for each other, and spin.
# Set before torch is imported, and passed on to the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline, and none for finding examples: the machine is shared, and time is judged by
# benchmarks, as ratios.
for profile, examples in (("rose", 30), ("slow", 300)):
    hypothesis.settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("rose")  # `make test-slow` says --hypothesis-profile=slow.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--summary", metavar="FILE", help="write what came out, as JSON, to FILE")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    path = config.getoption("--summary")
    if path is None:
        return
    stats = terminalreporter.stats
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, text=True, capture_output=True, check=False
    )
    summary = {
        "commit": commit.stdout.strip(),
        "selected": config.getoption("markexpr"),
        "exit_status": exitstatus,
        "seconds": round(time.monotonic() - STARTED),
        **{kind: len(stats.get(kind, ())) for kind in ("passed", "skipped")},
        "failures": sorted(
            one.nodeid for kind in ("failed", "error") for one in stats.get(kind, ())
        ),
    }
    Path(path).write_text(json.dumps(summary, indent=2) + "\n")


def is_one_of_several(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_one_of_several(config):
        items.sort(key=lambda item: place(item.nodeid))


# Outside of everything else, so that no time of a test is spent with waiting for its turn.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not is_one_of_several(item.config):
        return (yield)
    with turn(ROOT / "build" / "turns", alone=is_alone(item.nodeid)):
        return (yield)


@pytest.fixture(scope="session")
def repo() -> Path:
    """Return the root of the repository."""
    return ROOT
