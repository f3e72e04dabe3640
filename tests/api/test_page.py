"""docs/api.md is what the docstrings say, and the public names fit one page."""

import pytest

from tests.load import load


@pytest.fixture(scope="module")
def writer(repo):
    return load(repo / "docs" / "write_api.py")


def test_page_is_current(writer, repo) -> None:
    page = (repo / "docs" / "api.md").read_text(encoding="utf-8")
    assert page == writer.page(), "run: python docs/write_api.py"


def test_at_most_sixty_names_are_public_and_each_says_what_it_is(writer) -> None:
    names = [name for package in writer.PACKAGES for name in writer.public(package)]
    assert len(set(names)) == len(names) <= 60
    for package in writer.PACKAGES:
        for name, value in writer.public(package).items():
            assert writer.sentence(value).endswith((".", ":")), name
