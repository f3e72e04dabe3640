"""What a publisher must know when it is started again: no version is ever called the same twice."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.whole_file import write_whole

_FORMAT: Final = 1
_BYTES_MAX: Final = 1 << 26
_NUMBER: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class PublishState:
    """What was published so far.

    Args:
        run: names the training run.
        incarnation: of the publisher, the next one has a higher one.
        n: of the newest version that was or may have been published.
        newest: the checkpoint that it is, as a path.
        published: checkpoints that are done with, as paths.
    """

    run: str
    incarnation: int
    n: int
    newest: str
    published: tuple[str, ...] = ()


def read_state(path: Path) -> PublishState | None:
    """Read what was written, or None where nothing was.

    Raises:
        CorruptData: it is no such file.
        InvalidArgument: it cannot be read.
    """
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise CorruptData(f"{path} is larger than any state of a publisher")
        content: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{path} is not JSON: {error}") from None
    names = {field.name for field in fields(PublishState)}
    if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
        raise CorruptData(f"{path} is no state of a publisher of format {_FORMAT}")
    if content.keys() != names or not isinstance(content["published"], list):
        raise CorruptData(f"{path} lacks what a publisher has to know")
    numbers = [content["incarnation"], content["n"]]
    texts = [content["run"], content["newest"], *content["published"]]
    if not all(isinstance(one, int) and 0 <= one < 1 << 62 for one in numbers):
        raise CorruptData(f"{path} has numbers that no version has")
    if not all(isinstance(one, str) for one in texts):
        raise CorruptData(f"{path} has names that are no text")
    return PublishState(**{**content, "published": tuple(content["published"])})


def write_state(path: Path, state: PublishState) -> None:
    """Write it whole or not at all.

    Raises:
        Unavailable: it cannot be written.
    """
    try:
        write_whole(path, json.dumps({"format": _FORMAT, **asdict(state)}).encode())
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror or error}") from error


def entries(folder: Path) -> Iterator[Path]:
    """Return what a folder offers as checkpoints, "step-9" before "step-10".

    Names with a dot in front are of somebody who still writes.

    Raises:
        Unavailable: the folder cannot be read.
    """
    try:
        found = [one for one in folder.iterdir() if not one.name.startswith(".")]
        found = [one for one in found if one.is_dir() or one.name.endswith(".safetensors")]
    except OSError as error:
        raise Unavailable(f"cannot read {folder}: {error.strerror or error}") from error
    yield from sorted(found, key=lambda one: (_natural(one.name), one.name))


def _natural(name: str) -> list[tuple[int, str]]:
    parts = _NUMBER.split(name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
