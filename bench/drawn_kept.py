"""What was simulated of the drawn scenarios: one line of JSON for each arm of each seed."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from rose import _core
from rose.errors import CorruptData, check
from rose.sim.scenario.cost import Cost
from rose.sim.study.figures import ArmFigures, ServedFigures

_ROOT: Final = Path(__file__).resolve().parent.parent
# What an outcome depends on, besides the extension; of a folder its code and its tables. The test
# of `code_paths` watches a simulation, so that none is forgotten.
_INPUTS: Final = (
    "bench/drawn_runs.py",
    "bench/drawn_scenarios.py",
    "rose/errors.py",
    "rose/executor/certified.py",
    "rose/executor/model_cost.py",
    "rose/executor/probing.py",
    "rose/executor/refusals.py",
    "rose/memory",
    "rose/scheduler",
    "rose/sim",
    "rose/slo",
    "rose/transfer/codec/box.py",
    "rose/transfer/plan",
    "rose/units.py",
)
_SUFFIXES: Final = frozenset({".py", ".json"})
_KEYS: Final = {"code", *(field.name for field in fields(ArmFigures))}


@dataclass(frozen=True, slots=True)
class KeptRun:
    """An arm of a seed.

    Args:
        code: digest of what simulated it, settings that were tried out included.
        figures: what came out.
    """

    code: str
    figures: ArmFigures


class Kept:
    """A file of runs. One process writes it; a line that was cut short at its end is cut off."""

    def __init__(self, path: Path) -> None:
        """Read what there is.

        Raises:
            CorruptData: the file has a line that is no run.
        """
        self._path = path
        self._runs: list[KeptRun] = []
        if path.exists():
            _cut(path)
            self._runs = list(_read(path))

    def find(self, seed: int, arm: str, code: str | None) -> ArmFigures | None:
        """Return the latest figures of an arm; by any code if it is None."""
        for run in reversed(self._runs):
            mine = run.figures
            if mine.seed == seed and mine.arm == arm and code in (None, run.code):
                return mine
        return None

    def add(self, runs: Sequence[KeptRun]) -> None:
        """Append runs, on the disk too."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as lines:
            for run in runs:
                lines.write(json.dumps({"code": run.code, **asdict(run.figures)}) + "\n")
        self._runs += runs


def code_digest(settings: Mapping[str, float]) -> str:
    """Return what names the code that simulates, and the settings that are tried out on it."""
    digest = hashlib.sha256(Path(str(_core.__file__)).read_bytes())
    for path in code_paths():
        digest.update(path.read_bytes())
    digest.update(json.dumps(sorted(settings.items())).encode())
    return digest.hexdigest()[:16]


def code_paths() -> list[Path]:
    """Return the files that an outcome depends on, in their order."""
    paths: list[Path] = []
    for named in _INPUTS:
        one = _ROOT / named
        check(one.exists(), f"an outcome no longer depends on {named}: leave it out")
        inside = one.rglob("*") if one.is_dir() else [one]
        paths += [path for path in inside if path.suffix in _SUFFIXES]
    return sorted(paths)


def _cut(path: Path) -> None:
    """Take away what a process that ended in the middle of a line left."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        path.write_bytes(content[:whole])


def _read(path: Path) -> Iterable[KeptRun]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        run = _run(path, number, line)
        if run is not None:
            yield run


def _run(path: Path, number: int, line: str) -> KeptRun | None:
    """Return a run; None for one of another code, which had other figures."""
    try:
        kept = json.loads(line)
    except ValueError:
        raise CorruptData(f"{path} line {number} is no run; delete the file") from None
    is_as_now = isinstance(kept, dict) and kept.keys() == _KEYS
    return _run_from(kept) if is_as_now else None


def _run_from(kept: dict[str, Any]) -> KeptRun:
    served, cost = kept.pop("served"), kept.pop("cost")
    code = kept.pop("code")
    figures = ArmFigures(
        **{**kept, "rollout_s": tuple(kept["rollout_s"])},
        served=None if served is None else ServedFigures(**served),
        cost=None if cost is None else Cost(**cost),
    )
    return KeptRun(code, figures)
