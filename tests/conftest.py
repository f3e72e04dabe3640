"""What every test shares: the root, how Hypothesis searches, and who runs beside whom.

In a run of several processes (`pytest -n 2 --dist loadfile`, which `make test` is) a file is run by
one of them, and the files of `tests/alone.py` while the others wait.
"""

import functools
import gc
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

from tests.alone import is_alone, place, turn
from tests.warm import Nursery, Start, WarmPopen

ROOT: Final = Path(__file__).resolve().parents[1]
STARTED: Final = time.monotonic()
# Test processes share the cores already: threads of torch would only wait for each other, and spin.
# Set before torch is imported, and passed on to the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that starts tests in the background has them ignore interrupts, and with them all programs
# that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

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
    parser.addoption("--faults", metavar="FILE", help="update the campaigns that ran in JSON FILE")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    stats = terminalreporter.stats
    if path := config.getoption("--faults"):
        ended = [one for kind in ("passed", "failed", "error") for one in stats.get(kind, ())]
        write_faults(Path(path), ended)
    path = config.getoption("--summary")
    if path is None:
        return
    summary = {
        "commit": head(),
        "selected": config.getoption("markexpr"),
        "exit_status": exitstatus,
        "seconds": round(time.monotonic() - STARTED),
        **{kind: len(stats.get(kind, ())) for kind in ("passed", "skipped")},
        "failures": sorted(
            one.nodeid for kind in ("failed", "error") for one in stats.get(kind, ())
        ),
    }
    Path(path).write_text(json.dumps(summary, indent=2) + "\n")


def head() -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, check=False
    ).stdout.strip()


def write_faults(path: Path, reports: list[pytest.TestReport]) -> None:
    """Write the figures of each campaign that ran; those of others stay as they are.

    A test ends at its first loss, so each failed test is one loss.
    """
    found: dict[str, dict[str, Any]] = {}
    for report in reports:
        for campaign, tries in dict(report.user_properties).get("tries", {}).items():
            figures = found.setdefault(
                campaign, {"tries": 0, "losses": 0, "seconds": 0.0, "commit": head()}
            )
            figures["tries"] += tries if report.when == "call" else 0
            figures["losses"] += report.failed
            figures["seconds"] = round(figures["seconds"] + report.duration, 1)
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(dict(sorted((kept | found).items())), indent=2) + "\n")


def is_one_of_several(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_one_of_several(config):
        items.sort(key=lambda item: place(item.nodeid))


def pytest_collection_finish() -> None:
    """Take what is there before the first test out of what every garbage collection looks at.

    torch and transformers are 370,000 objects, and an engine that stops has all of them looked at.
    """
    gc.collect()
    gc.freeze()


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


@pytest.fixture(scope="session")
def warm() -> Iterator[Start]:
    """Return what starts `python -m MODULE ...` without importing torch anew."""
    with Nursery() as nursery:
        yield functools.partial(WarmPopen, nursery)


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Return what counts the tries of a fault campaign; `--faults` writes their sum."""
    tries: dict[str, int] = {}
    record_property("tries", tries)

    def add(campaign: str, count: int = 1) -> None:
        tries[campaign] = tries.get(campaign, 0) + count

    return add
