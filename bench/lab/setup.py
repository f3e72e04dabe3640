"""Build `rose_lab._sim` by the build of rose, from the same objects.

So the laboratory is built from a checkout of rose: `pip wheel ./bench/lab`.
"""

import importlib.util
from pathlib import Path

from setuptools import setup

BUILD_OF_ROSE = Path(__file__).resolve().parents[2] / "setup.py"

if not BUILD_OF_ROSE.exists():
    raise SystemExit("rose: rose-lab is built in a checkout of rose, by `pip wheel ./bench/lab`")
spec = importlib.util.spec_from_file_location("build_of_rose", BUILD_OF_ROSE)
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

if __name__ == "__main__":
    setup(
        ext_modules=[build.extension(build.SIMULATOR)],
        cmdclass={"build_ext": build.BuildWithNinja},
    )
