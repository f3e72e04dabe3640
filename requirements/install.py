"""Set up rose in a virtual environment, as `make install` does.

The compiler and pip work at the same time: ninja builds the C++ core in place while pip downloads
and installs the packages. If one of them fails, the other is stopped, one sentence names the log,
and the exit status is 2.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parent.parent
LOGS: Final = Path("build")  # from ROOT
EDITABLE: Final = ("-e", ".[test,bench]", "-e", "./bench/lab[demo]")
# With torch for CPUs the environment takes 2.1 GiB and the build 0.1; pip also keeps its downloads.
FREE_BYTES_MIN: Final = 3 << 30
FULL_BYTES: Final = 1 << 20
EXIT_USAGE: Final = 2
STOP_S: Final = 5.0  # time to end after SIGTERM
REPORT_S: Final = 30.0  # time between two reports of commands that still run
REPORT_COLUMNS: Final = 70
PIP: Final = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_ROOT_USER_ACTION": "ignore",
}


class Phase:
    """One command of the set-up, in a process group of its own, with its output in a log."""

    def __init__(self, title: str, name: str, command: Sequence[str], **environment: str) -> None:
        self.title = title
        self.log = LOGS / f"install-{name}.log"
        self._started = time.monotonic()
        with (ROOT / self.log).open("w") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **PIP, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_over(self) -> bool:
        """Return True if the command has ended."""
        return self._process.poll() is not None

    def settle(self) -> None:
        """Print the command's time, and its lines that begin with "rose: ".

        Raises:
            Failure: the command failed.
        """
        if self._process.returncode:
            raise Failure(self)
        print(f"rose: {self.title}: {time.monotonic() - self._started:.0f} s", flush=True)
        for line in (ROOT / self.log).read_text(errors="replace").splitlines():
            if line.startswith("rose: "):
                print(line, flush=True)

    def report(self) -> None:
        """Print how long the command has run, and the last line of its log."""
        lines = (ROOT / self.log).read_text(errors="replace").split("\n")
        said = (line.strip() for line in reversed(lines) if not line.startswith("WARNING"))
        last = next(filter(None, said), "started")
        elapsed_s = time.monotonic() - self._started
        print(f"rose: {self.title}, {elapsed_s:.0f} s: {last[:REPORT_COLUMNS]}", flush=True)

    def stop(self) -> None:
        """End the command and all processes that it started."""
        if self._process.poll() is not None:
            return
        # Not SIGKILL: ninja puts each compiler into a group of its own, and ends them on SIGTERM.
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def reason(self) -> str:
        """Return the reason of the failure in one sentence, from the log."""
        text = (ROOT / self.log).read_text(errors="replace")
        # On a full disk, the log may end before its line about that.
        if "No space left on device" in text or shutil.disk_usage(ROOT).free < FULL_BYTES:
            return f"the disk is full: {self.title} stopped (free {FREE_BYTES_MIN >> 30} GiB)"
        said = [line.strip() for line in text.splitlines()]
        for start in ("rose: ", "ERROR: "):
            if found := [line.removeprefix(start) for line in said if line.startswith(start)]:
                return found[-1] if start == "rose: " else f"{self.title} failed: {found[-1]}"
        return f"{self.title} failed with status {self._process.returncode}"


class Failure(Exception):
    """A phase failed."""

    def __init__(self, phase: Phase) -> None:
        super().__init__(f"{phase.reason()} (log: {phase.log})")


def run(*phases: Phase) -> None:
    """Wait for commands that run at the same time. If one fails, or on SIGTERM, stop all."""
    waiting = list(phases)
    reported = time.monotonic()
    try:
        while waiting:
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                for phase in waiting:
                    phase.report()
            for phase in [one for one in waiting if one.is_over()]:
                waiting.remove(phase)
                phase.settle()
            time.sleep(0.05)
    finally:
        for phase in waiting:
            phase.stop()


def install(environment: Path) -> None:
    """Create the environment, then build the extensions and install the packages."""
    python = str(environment / "bin" / "python")
    forget_half_installed(environment)
    # venv installs pip last, so an environment without pip is unfinished.
    if not (environment / "bin" / "pip").exists():
        check_space(environment.parent)
        run(Phase("environment", "venv", [sys.executable, "-m", "venv", str(environment)]))
    # Python compiles a module at its first import; most of torch and transformers never is.
    pip = [python, "-m", "pip", "install", "--no-compile", "-c", "requirements/constraints.txt"]
    run(Phase("build tools", "tools", [*pip, "setuptools", "pybind11", "ninja"]))
    print("rose: compiling the core while pip installs packages, some minutes", flush=True)
    core = Phase("C++ core", "core", [python, "setup.py", "build_ext", "--inplace"])
    # With build isolation, pybind11 would be at a new path, and every object would be rebuilt.
    packages = [*pip, "--no-build-isolation", *EDITABLE]
    run(core, Phase("packages", "packages", packages, ROSE_CORE="elsewhere"))


def check_space(folder: Path) -> None:
    """Stop if `folder` has no room for an environment."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < FREE_BYTES_MIN:
        stop(
            f"set-up needs {FREE_BYTES_MIN >> 30} GiB of disk, and "
            f"{free_bytes / (1 << 30):.1f} GiB are free at {folder}"
        )


def forget_half_installed(environment: Path) -> None:
    """Delete the metadata of packages whose installation was interrupted.

    pip regards a package with metadata as installed, and would not install its missing files.
    """
    for metadata in environment.glob("lib/python*/site-packages/*.dist-info"):
        if not (metadata / "INSTALLER").exists():  # pip writes it after files and scripts
            shutil.rmtree(metadata)


def stop(reason: str) -> NoReturn:
    """Print the reason in one sentence, and exit with status 2."""
    print(f"rose: {reason}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


def terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Raise SystemExit, so that `run` stops the commands."""
    raise SystemExit(128 + signal.SIGTERM)


def main() -> None:
    """Install into the environment that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="made when it is missing")
    environment = (ROOT / parser.parse_args().venv).absolute()
    signal.signal(signal.SIGTERM, terminate)
    started = time.monotonic()
    try:
        (ROOT / LOGS).mkdir(exist_ok=True)
        environment.parent.mkdir(parents=True, exist_ok=True)
        install(environment)
    except Failure as failure:
        stop(str(failure))
    except OSError as error:
        stop(f"set-up stopped: {error}")
    print(f"rose: ready after {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
