"""Where the versions are kept between runs of the bench: files that say what they are of."""

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
    """Versions of a model that was trained, read from files as they are looked at.

    Args:
        settings: what they were made by.
        versions: of each run, (kept, n) bf16 bits, the newest last.
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
    """Return the versions that are kept in `folder`, made if they are not those of `settings`.

    Making them takes minutes. Whatever is missing, cut off or changed is made anew.
    """
    settings = settings or Settings()
    kept = _read(settings, folder)
    if kept is None:
        _write(settings, make(settings), folder)
        kept = _read(settings, folder)
    if kept is None:
        raise OSError(f"what was just written to {folder} is not there any more")
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
    """Put a recording in the place of what is there, as one."""
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
