"""Every sentence that a user may see is on one page, where a change of it is reviewed."""

from pathlib import Path

import pytest

from tests.load import load


@pytest.fixture(scope="module")
def writer(repo: Path):
    return load(repo / "docs" / "write_errors.py")


def test_the_page_has_every_sentence(repo: Path, writer) -> None:
    page = (repo / "docs" / "errors.md").read_text(encoding="utf-8")
    assert page == writer.page(), "run: python docs/write_errors.py"


def test_a_sentence_has_a_mark_for_each_value(tmp_path: Path, writer) -> None:
    path = tmp_path / "one.py"
    path.write_text('raise errors.Unavailable(f"no {a} in {b.c()!r}, " + why)\nraise Other("x")\n')
    assert list(writer.raised(path)) == [("Unavailable", "no … in …, …")]
