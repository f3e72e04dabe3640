"""Storage of the versions between runs of the bench, in files that name their settings."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.trained.record import Recording, pair_of, record
from bench.trained.settings import Point, Settings

Bits = npt.NDArray[np.uint16]

FOLDER: Final = Path(__file__).resolve().parents[2] / "build" / "trained-steps"
_LOG: Final = "log.json"


@dataclass(frozen=True, slots=True)
class TrainedSteps:
    """Versions of a trained model, read from files on access.

    Args:
        settings: settings of the training.
        versions: (kept, n) bf16 bits of each run, the newest last.
        log: see `bench/trained/record.py`.
    """

    settings: Settings
    versions: tuple[Bits, ...]
    log: dict[str, Any]

    def pair(self, point: Point) -> tuple[Bits, Bits]:
        """Return (new, old) of a point."""
        return pair_of(self.versions, point)


def trained_steps(
    settings: Settings | None = None,
    *,
    folder: Path = FOLDER,
    make: Callable[[Settings], Recording] = record,
) -> TrainedSteps:
    """Return the versions in `folder`; make them if they do not match `settings`.

    Making them takes minutes. Missing, incomplete or changed files are made again.
    """
    settings = settings or Settings()
    kept = _read(settings, folder)
    if kept is None:
        _write(settings, make(settings), folder)
        kept = _read(settings, folder)
    if kept is None:
        raise OSError(f"the versions just written to {folder} cannot be read")
    return kept


def _read(settings: Settings, folder: Path) -> TrainedSteps | None:
    try:
        log = json.loads((folder / _LOG).read_text(encoding="utf-8"))
        if log.pop("fingerprint") != settings.fingerprint():
            return None
        if [_sha256(folder / _name(run)) for run in range(len(settings.runs))] != log.pop("sha256"):
            return None
    except (OSError, ValueError, KeyError):
        return None
    versions = [np.load(folder / _name(run), mmap_mode="r") for run in range(len(settings.runs))]
    return TrainedSteps(settings, tuple(versions), log)


def _write(settings: Settings, recording: Recording, folder: Path) -> None:
    """Replace the stored recording atomically."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        ready = Path(place) / folder.name
        ready.mkdir()
        for run, versions in enumerate(recording.versions):
            np.save(ready / _name(run), versions)
        sums = [_sha256(ready / _name(run)) for run in range(len(recording.versions))]
        log = {"fingerprint": settings.fingerprint(), "sha256": sums, **recording.log}
        (ready / _LOG).write_text(json.dumps(log) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        ready.rename(folder)


def _name(run: int) -> str:
    return f"run-{run}.npy"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
