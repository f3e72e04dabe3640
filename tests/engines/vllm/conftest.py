"""vLLM, or the reason why its tests are skipped."""

from pathlib import Path

import pytest

from rose.errors import Unavailable


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory):
    """Return what makes parts of vLLM."""
    pytest.importorskip("torch")
    from tests.engines.vllm.rig import Parts

    try:
        return Parts(tmp_path_factory.mktemp("model"))
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "certificates.log"
