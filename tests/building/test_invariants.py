"""docs/invariants.md: each piece of code and each test that it names is where it says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
# "`path` (`name`, `name`)", "`path::name`" or "`path`"
_PLACE = re.compile(r"`([\w/]+\.(?:py|cpp|h))(?:::(\w+))?`(?:\s+\(((?:`\w+`,?\s*)+)[^)]*\))?")


def places() -> list[tuple[str, str]]:
    """Return (path, name) pairs; the name is empty where the page names a file only."""
    found = []
    for path, name, names in _PLACE.findall(PAGE):
        found += [(path, one) for one in re.findall(r"\w+", names)] or [(path, name)]
    return found


@pytest.mark.parametrize(("path", "name"), places())
def test_every_name_is_in_its_file(path: str, name: str) -> None:
    assert re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8"))


def test_the_page_names_many_places() -> None:
    assert len(places()) > 100
