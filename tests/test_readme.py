"""What the README and the tutorial show is what works."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_readme_fits_its_limit() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


def test_code_is_that_of_examples_which_run_in_tests_of_their_own(repo: Path) -> None:
    examples = [stripped(one.read_text("utf-8")) for one in (repo / "examples").rglob("*.py")]
    blocks = {}
    for page in (repo / "README.md", *(repo / "docs").glob("*.md")):
        found = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        blocks[page.name] = len(found)
        for piece in "\n\n".join(found).strip().split("\n\n"):
            assert any(is_in(stripped(piece), example) for example in examples), piece
    assert (blocks["README.md"], blocks["tutorial.md"]) == (3, 8)


def is_in(lines: list[str], example: list[str]) -> bool:
    return any(example[at : at + len(lines)] == lines for at in range(len(example)))


def stripped(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]
