"""What the README shows is what works."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_readme_fits_its_limit() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


def test_python_example_is_that_of_lend_which_runs_in_a_test_of_its_own(repo: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    example = stripped((repo / "examples" / "lend.py").read_text(encoding="utf-8"))
    for piece in block.strip().split("\n\n"):
        lines = stripped(piece)
        assert any(example[at : at + len(lines)] == lines for at in range(len(example))), piece


def stripped(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]
