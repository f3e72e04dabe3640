"""Write the table of docs/vllm.md from what its tests show: `python docs/write_vllm.py`.

A test keeps it current.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.engines.vllm.shown import SETTINGS  # noqa: E402

PAGE = ROOT / "docs" / "vllm.md"
HEAD = "| vLLM | mode | feature | tests in `tests/engines/vllm` |\n|---|---|---|---|\n"
_TABLE = re.compile(r"\| vLLM \| mode .*\n(\|.*\n)+")


def table() -> str:
    """Return the table: a row for each feature."""
    return HEAD + "".join(
        f"| {setting.version} | {setting.mode} | {one.feature} | `test_{one.file}.py` |\n"
        for setting in SETTINGS
        for one in setting.shown
    )


def page() -> str:
    """Return the whole page."""
    return _TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8"), count=1)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
