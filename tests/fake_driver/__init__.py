"""A `libcuda.so.1` of our own: every entry of csrc/driver/entries.h, streams that really execute.

It shows which calls rose makes, in which order, with what, and what is left behind; how a real
driver behaves, and how fast, it cannot show. Tests that need it run in a process of their own,
because a process has one `libcuda.so.1` for good:

    @in_child()
    def test_stream_waits(fake: Fake) -> None: ...
"""

import ctypes
import fcntl
import functools
import hashlib
import importlib
import inspect
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
FLAGS: Final = (
    "-std=c++20 -O1 -g -shared -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Wconversion "
    "-Werror -Wl,-soname,libcuda.so.1 -Wl,--no-undefined"
)
# All else, the inline functions of the standard library too, stays inside.
EXPORTS: Final = "{ global: cuGetProcAddress_v2; fakecuda_*; local: *; };"


def build() -> Path:
    """Build the fake unless it is there already, and return the folder it is in."""
    sources = sorted(HERE.glob("*.cpp"))
    parts = [*sources, *HERE.glob("*.h"), *(ROOT / "csrc/driver").glob("*.h")]
    command = [*shlex.split(os.environ.get("CXX") or "g++"), *FLAGS.split()]
    command += [f"-I{ROOT / 'csrc'}", f"-I{HERE}"]
    stamp = hashlib.sha256((shlex.join(command) + EXPORTS).encode())
    for part in sorted(parts):
        stamp.update(part.read_bytes())
    base = ROOT / "build" / "fake-driver"
    folder = base / stamp.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run must not build here now
        if not (folder / "libcuda.so.1").exists():
            exports, made = folder / "exports.map", folder / "made.so"
            exports.write_text(EXPORTS)
            command += [f"-Wl,--version-script={exports}"]
            subprocess.run([*command, *sources, "-o", made], check=True)
            made.rename(folder / "libcuda.so.1")
    return folder


KERNEL: Final = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint, ctypes.c_void_p
)


class Fake:
    """The controls of the fake that this process loads; what they do stands in `controls.h`."""

    def __init__(self) -> None:
        library = ctypes.CDLL("libcuda.so.1")
        self._library = library
        self._kept: list[Any] = []  # callbacks that the library may still call
        for name in ("log", "kernels", "live", "faults"):
            getattr(library, f"fakecuda_{name}").restype = ctypes.c_char_p
        for name in ("hold", "release", "pending", "invalidate"):
            getattr(library, f"fakecuda_{name}").argtypes = [ctypes.c_void_p]
        for name in ("memory", "launch_queue"):
            getattr(library, f"fakecuda_set_{name}").argtypes = [ctypes.c_size_t]
        library.fakecuda_on_kernel.argtypes = [ctypes.c_char_p, KERNEL, ctypes.c_void_p]

    def _lines(self, name: str) -> list[str]:
        return getattr(self._library, f"fakecuda_{name}")().decode().splitlines()

    def log(self) -> list[str]:
        return self._lines("log")

    def kernels(self) -> list[str]:
        return self._lines("kernels")

    def live(self) -> list[str]:
        return self._lines("live")

    def faults(self) -> list[str]:
        return self._lines("faults")

    def calls(self, name: str) -> int:
        return self._library.fakecuda_calls(name.encode())

    def reset(self) -> None:
        self._library.fakecuda_reset()

    def fail(self, name: str, *, nth: int = 1, code: int) -> None:
        self._library.fakecuda_fail(name.encode(), nth, code)

    def is_fail_pending(self) -> bool:
        return bool(self._library.fakecuda_is_fail_pending())

    def missing(self, name: str) -> None:
        self._library.fakecuda_missing(name.encode())

    def set_devices(self, count: int) -> None:
        self._library.fakecuda_set_devices(count)

    def set_version(self, version: int) -> None:
        self._library.fakecuda_set_version(version)

    def set_attribute(self, attribute: int, value: int) -> None:
        self._library.fakecuda_set_attribute(attribute, value)

    def set_memory(self, size_bytes: int) -> None:
        self._library.fakecuda_set_memory(size_bytes)

    def set_launch_queue(self, count: int) -> None:
        self._library.fakecuda_set_launch_queue(count)

    def set_launch_blocking(self, is_blocking: bool) -> None:
        self._library.fakecuda_set_launch_blocking(int(is_blocking))

    def blocked(self) -> int:
        return self._library.fakecuda_blocked()

    def push_foreign(self) -> None:
        self._library.fakecuda_push_foreign()

    def is_foreign_current(self) -> bool:
        return bool(self._library.fakecuda_is_foreign_current())

    def pop_foreign(self) -> None:
        self._library.fakecuda_pop_foreign()

    def depth(self) -> int:
        return self._library.fakecuda_depth()

    def pump(self) -> None:
        self._library.fakecuda_pump()

    def hold(self, stream: int) -> None:
        self._library.fakecuda_hold(stream)

    def release(self, stream: int) -> None:
        self._library.fakecuda_release(stream)

    def pending(self, stream: int) -> int:
        return self._library.fakecuda_pending(stream)

    def invalidate(self, stream: int) -> None:
        self._library.fakecuda_invalidate(stream)

    def arguments(self, kernel: str, sizes_bytes: list[int]) -> None:
        text = " ".join(map(str, sizes_bytes))
        self._library.fakecuda_arguments(kernel.encode(), text.encode())

    def on_kernel(self, kernel: str, run: Callable[[list[int]], None]) -> None:
        callback = KERNEL(lambda arguments, count, _: run(list(arguments[:count])))
        self._kept.append(callback)
        self._library.fakecuda_on_kernel(kernel.encode(), callback, None)


def run_python(
    code: str, *, folder: Path, text: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python where libraries are looked for in `folder` first."""
    paths = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code],
        input=text,
        cwd=ROOT,
        env={**os.environ, **environment, **paths},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def in_child(**environment: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test in a process of its own, where `libcuda.so.1` is the fake.

    The test takes `fake: Fake`, and parameters that JSON can carry; `environment` is set there.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def outside(**arguments: Any) -> None:
            place = f"{inspect.getfile(test)}\n{test.__name__}\n{json.dumps(arguments)}"
            start = f"from {__name__} import inside; inside()"
            eager = {"CUDA_MODULE_LOADING": "EAGER", **environment}
            done = run_python(start, folder=build(), text=place, **eager)
            assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name != "fake"]
        del outside.__wrapped__  # type: ignore[attr-defined]
        outside.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        outside.inside = test  # type: ignore[attr-defined]
        return outside

    return decorate


def inside() -> None:
    """Run the test that the parent names on stdin."""
    file, name, arguments = sys.stdin.read().split("\n", 2)
    module = ".".join(Path(file).resolve().relative_to(ROOT).with_suffix("").parts)
    getattr(importlib.import_module(module), name).inside(Fake(), **json.loads(arguments))
