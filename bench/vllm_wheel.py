"""vLLM's scheduler and block pool, taken from its wheel, on a machine without vLLM.

The classes that count blocks and order requests are plain Python. The wheel's Python files suffice
for them. Packages that vLLM imports elsewhere become placeholders if they are missing.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from bench.placeholders import placeholders
from rose.config import read_environment
from rose.errors import Unavailable

VERSION: Final = "0.33.0"
_ROOT: Final = Path(__file__).resolve().parent.parent
_CACHE: Final = _ROOT / "build" / "peers"
_UNPACKED: Final = _CACHE / f"vllm-{VERSION}"
# Value of ROSE_VLLM_WHEEL that permits the download of the wheel, 336 MB.
_FETCH: Final = "download"
_FETCH_S: Final = 900.0  # for 336 MB
# Packages that vLLM imports besides its scheduler: front ends, transports, grammars.
_UNUSED: Final = frozenset(
    "aiohttp cachetools cbor2 cloudpickle fastapi llguidance openai openai_harmony "
    "partial_json_parser prometheus_client pybase64 requests urllib3 uvloop xgrammar zmq".split()
)


def load_block_pool() -> type[Any]:
    """Return vLLM's `BlockPool`. Afterwards `load` returns its other modules.

    Raises:
        Unavailable: as `load`.
    """
    found: type[Any] = load("vllm.v1.core.block_pool").BlockPool
    return found


def load(module: str) -> Any:
    """Return a module of vLLM 0.33, unmodified.

    It comes from an installed vLLM, from the wheel that `ROSE_VLLM_WHEEL` names, or from the one in
    build/peers, where `ROSE_VLLM_WHEEL=download` puts it.

    Raises:
        Unavailable: there is no vLLM here; the message has the reason and a remedy.
    """
    with importable():
        try:
            version = importlib.import_module("vllm.version").__version__
            found = importlib.import_module(module)
        except ModuleNotFoundError as missing:
            raise Unavailable(f"vLLM {VERSION} needs the package '{missing.name}'") from missing
    if version.split("+")[0] != VERSION:
        raise Unavailable(f"the peer is vLLM {VERSION}, got {version}")
    return found


@contextmanager
def importable() -> Iterator[None]:
    """Let vLLM import more of its modules, as some of its classes do when they are used."""
    # vLLM sets environment variables for its own processes; this process is not one of them.
    with mock.patch.dict(os.environ, VLLM_CONFIGURE_LOGGING="0"), placeholders(_UNUSED):
        if "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None:
            yield
            return
        folder = str(_unpacked())
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


def _unpacked() -> Path:
    """Return the folder with the Python files of the wheel."""
    named = read_environment().vllm_wheel
    if named not in (None, _FETCH):
        return _unpack(Path(named))
    if _UNPACKED.is_dir():
        return _UNPACKED
    wheels = sorted(_CACHE.glob(f"vllm-{VERSION}-*.whl"))
    if not wheels and named == _FETCH:
        wheels = [_fetch()]
    if not wheels:
        raise Unavailable(
            f"there is no vLLM {VERSION} here: install it, or name its wheel in ROSE_VLLM_WHEEL "
            f"(`{_FETCH}` fetches it, 336 MB)"
        )
    return _unpack(wheels[0])


def _fetch() -> Path:
    _CACHE.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:"),
        *("--dest", str(_CACHE), f"vllm=={VERSION}"),
    ]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_FETCH_S
        )
    except subprocess.TimeoutExpired as late:
        raise Unavailable(f"vLLM {VERSION} was not fetched within {_FETCH_S:g} s") from late
    wheels = sorted(_CACHE.glob(f"vllm-{VERSION}-*.whl"))
    if answer.returncode != 0 or not wheels:
        reason = (answer.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise Unavailable(f"vLLM {VERSION} could not be fetched: {reason}")
    return wheels[0]


def _unpack(wheel: Path) -> Path:
    """Unpack the Python files of a wheel once; a second process uses them."""
    if _UNPACKED.is_dir():
        return _UNPACKED
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
        made = Path(folder) / "made"
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".py")]
                archive.extractall(made, [name for name in names if name.startswith("vllm/")])
        except (OSError, zipfile.BadZipFile) as wrong:
            raise Unavailable(f"{wheel} is no wheel of vLLM: {wrong}") from wrong
        if not (made / "vllm" / "v1" / "core" / "block_pool.py").is_file():
            raise Unavailable(f"{wheel} is no wheel of vLLM {VERSION}")
        try:
            made.rename(_UNPACKED)
        except OSError:
            if not _UNPACKED.is_dir():
                raise
    return _UNPACKED
