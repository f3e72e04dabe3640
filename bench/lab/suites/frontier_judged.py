"""The values of the frontier's bars at each judged commit, with the commit's own seeds."""

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.rows import Bar, rounded

ROOT: Final = Path(__file__).resolve().parents[3]
JUDGED: Final = ROOT / "bench" / "results" / "frontier-judged.jsonl"
TUNING_SEEDS: Final = (0, 2)
LAST: Final = 3
_ODD_SEEDS: Final = 500_000


def judging_seeds(commit: str, count: int) -> tuple[int, ...]:
    """Return odd seeds above 1,000, drawn with a commit's hash; seeds for tuning are even."""
    drawn = [hashlib.sha256(f"{commit} {number}".encode()).digest() for number in range(count)]
    return tuple(1001 + 2 * (int.from_bytes(one[:8], "big") % _ODD_SEEDS) for one in drawn)


def is_clean() -> bool:
    """Return True if the code equals the commit. Files of results may differ."""
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":!bench/results"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return answer.returncode == 0 and not answer.stdout.strip()


def append_judgement(
    path: Path, commit: str, seeds: Sequence[int], bars: Mapping[str, tuple[float, Bar]]
) -> None:
    """Append the values of a commit's bars, unless the commit was judged before."""
    if commit in [one["commit"] for one in read_judgements(path)]:
        return
    entry = {
        "commit": commit,
        "seeds": list(seeds),
        "missed": [name for name, (value, bar) in bars.items() if not bar.is_met(rounded(value))],
        "bars": {name: rounded(value) for name, (value, _) in bars.items()},
    }
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(entry) + "\n")


def read_judgements(path: Path) -> list[dict[str, Any]]:
    """Return all judgements, the oldest first."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def count_missed(path: Path) -> int:
    """Return how many of the last judged commits missed a bar."""
    return sum(bool(one["missed"]) for one in read_judgements(path)[-LAST:])
