"""vLLM, or the reason why its tests are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.vllm_servers import PYTHON
from rose.errors import Unavailable
from tests.engines.vllm.live import Pair


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory):
    """Return what makes parts of vLLM."""
    pytest.importorskip("torch")
    from tests.engines.vllm.rig import Parts

    try:
        return Parts(tmp_path_factory.mktemp("model"))
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two real servers for all tests of a run: they take minutes to start."""
    if not PYTHON.exists():
        pytest.skip("real vLLM is not installed here: make vllm-env")
    pytest.importorskip("transformers")
    # A socket's path is short.
    pair = Pair(tmp_path_factory.mktemp("vllm"))
    yield pair
    pair.close()


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "certificates.log"
