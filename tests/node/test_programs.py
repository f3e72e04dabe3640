"""Programs are started again when they end, and none is left behind, whatever ends first."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rose.errors import InvalidArgument
from rose.node import programs
from rose.node.commands import Command
from rose.node.programs import Programs
from tests.node.programs import ROOT
from tests.waiting import wait_for

CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '1000'])\n"
SLEEP = CHILD + "import time; print('up', flush=True); time.sleep(1000)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_BACKOFF_S", 0.01)
    monkeypatch.setattr(programs, "_STOP_S", 2.0)


def command(text: str, name: str = "one", **environment: str) -> Command:
    return Command(name, (sys.executable, "-c", text), environment, None)


def members(group: int) -> list[int]:
    """Return the living processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


async def until(is_so) -> None:
    while not is_so():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("text", [SLEEP, DEAF], ids=["ends", "ignores SIGTERM"])
async def test_programs_and_their_children_end_with_the_context(tmp_path: Path, text: str) -> None:
    made = [command(text, name) for name in ("a", "b")]
    async with Programs(made, tmp_path) as running:
        logs = [tmp_path / f"{one.name}.log" for one in made]
        await until(lambda: all(log.exists() and log.read_text() == "up\n" for log in logs))
        groups = [one.pid for one in running.programs]
        assert all(len(members(group)) == 2 for group in groups)
    await until(lambda: not any(members(group) for group in groups))  # killed, and soon gone


async def test_a_program_that_ends_is_started_again_and_its_log_goes_on(tmp_path: Path) -> None:
    text = "import os; print(os.environ['WORD'], os.environ.get('ROSE_TOKEN')); raise SystemExit(3)"
    async with Programs([command(text, WORD="hello")], tmp_path) as running:
        await until(lambda: running.programs[0].starts > 3)
    lines = (tmp_path / "one.log").read_text().splitlines()
    assert len(lines) >= 3
    assert set(lines) == {"hello None"}


async def test_the_token_of_clients_is_not_told_to_programs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ROSE_TOKEN", "of clients")
    text = "import os; print(os.environ.get('ROSE_TOKEN'), flush=True); import time; time.sleep(99)"
    log = tmp_path / "one.log"
    async with Programs([command(text)], tmp_path):
        await until(lambda: log.exists() and log.read_text())
    assert log.read_text() == "None\n"


async def test_pauses_before_restarts_grow(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(programs, "_BACKOFF_MAX_S", 0.03)
    async with Programs([command("raise SystemExit(5)")], tmp_path) as running:
        await until(lambda: running.programs[0].starts > 4)
    told = [record.getMessage() for record in caplog.records]
    assert all(one.startswith("one ended with 5; it starts again in 0.0 s;") for one in told)
    assert [record.args[2] for record in caplog.records[:4]] == [0.01, 0.02, 0.03, 0.03]


async def test_a_program_that_cannot_be_started_is_tried_again(tmp_path: Path, caplog) -> None:
    missing = Command("one", (str(tmp_path / "missing"),), {}, None)
    async with Programs([missing], tmp_path):
        await until(lambda: len(caplog.records) > 1)
    assert "one cannot be started: No such file or directory" in caplog.text


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match="cannot make the folder"):
        Programs([], tmp_path / "file")


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from rose.node.commands import Command
from rose.node.programs import Programs

async def main():
    made = Command("one", (sys.executable, "-c", sys.argv[2]), {}, None)
    async with Programs([made], Path(sys.argv[1])) as running:
        while running.programs[0].pid is None:
            await asyncio.sleep(0.01)
        print(running.programs[0].pid, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("text", [SLEEP, DEAF], ids=["ends", "ignores SIGTERM"])
def test_a_killed_supervisor_leaves_no_program_behind(tmp_path: Path, text: str) -> None:
    words = [sys.executable, "-c", SUPERVISOR, str(tmp_path), text]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        group = int(process.stdout.readline())
        wait_for(lambda: len(members(group)) == 2)
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not members(group))
