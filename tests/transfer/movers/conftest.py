"""Movers for tests: of the wheels where these are, and of what stands in for them everywhere."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from rose.errors import Unavailable
from rose.transfer.movers.introduction import Introduction
from rose.transfer.movers.kinds import MOVERS, module_of
from rose.transfer.movers.porter_process import START_S, PorterProcess
from rose.units import MIB

STAND_INS = Path(__file__).parent / "stand_ins"
_IS_ALLOWED = (
    "from rose.transfer.movers.private_network import make_network as make\n"
    "from rose.errors import Unavailable\n"
    "try: make()\n"
    "except Unavailable as error: print(error)\n"
)


@dataclass(frozen=True)
class Library:
    """A mover, and where Python finds its library."""

    mover: str
    path: str

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": self.path}


@pytest.fixture(scope="session")
def private_networks() -> None:
    """Skip where the kernel lets this user make no network, as in some containers."""
    environment = {"PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _IS_ALLOWED], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if done.stdout:
        pytest.skip(done.stdout.strip())


@pytest.fixture(params=["stand-in", pytest.param("wheel", marks=pytest.mark.peer)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=MOVERS)
def library(
    request: pytest.FixtureRequest,
    kind: str,
    private_networks: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Library]:
    """Give a mover whose library is on Python's path."""
    mover = str(request.param)
    if kind == "stand-in":
        monkeypatch.syspath_prepend(str(STAND_INS))
        yield Library(mover, str(STAND_INS))
        return
    check_wheel(mover)
    found = find_spec(module_of(mover))
    assert found is not None
    assert found.origin is not None
    yield Library(mover, str(Path(found.origin).parents[1]))


def ready(
    mover: str, nbytes: int, *, join: Introduction | None = None, start_s: float = START_S
) -> PorterProcess:
    """Start a porter, and wait until it is ready."""
    porter = PorterProcess(mover, nbytes, join=join, start_s=start_s)
    assert porter.introduction.pid == porter.pid
    return porter


def check_wheel(mover: str) -> None:
    """Skip, and say why, where the wheel of a mover is not there or cannot be loaded."""
    try:
        ready(mover, MIB).close()
    except (ValueError, Unavailable) as reason:
        pytest.skip(str(reason))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let movers be found, whatever is installed."""
    monkeypatch.syspath_prepend(str(STAND_INS))


def stick(folder: Path, monkeypatch: pytest.MonkeyPatch, *, after: str = "") -> None:
    """Let the libraries of all movers never be loaded."""
    monkeypatch.syspath_prepend(str(folder))
    for name in ("mooncake", "nixl_cu13"):
        stuck = f"{after}\nimport threading; threading.Event().wait()"
        (folder / f"{name}.py").write_text(stuck)
    importlib.invalidate_caches()
