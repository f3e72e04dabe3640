"""What a publisher must know when it is started again: no version is ever called the same twice."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.whole_file import read_input, write_whole

_BYTES_MAX: Final = 1 << 26
_NUMBER: Final = re.compile(r"(\d+)")
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class PublishState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was published so far.

    Args:
        run: names the training run.
        incarnation: of the publisher, the next one has a higher one.
        n: of the newest version that was or may have been published.
        newest: the checkpoint that it is, as a path.
        published: checkpoints that are done with, as paths.
        format: of the file.
    """

    run: str
    incarnation: _Count
    n: _Count
    newest: str
    published: tuple[str, ...] = ()
    format: Literal[1] = 1


def read_state(path: Path) -> PublishState | None:
    """Read what was written, or None where nothing was.

    Raises:
        CorruptData: it is no such file.
        InvalidArgument: it cannot be read.
    """
    try:
        return msgspec.json.decode(read_input(path, bytes_max=_BYTES_MAX), type=PublishState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{path} is no state of a publisher: {error}") from None


def write_state(path: Path, state: PublishState) -> None:
    """Write it whole or not at all.

    Raises:
        Unavailable: it cannot be written.
    """
    try:
        write_whole(path, msgspec.json.encode(state))
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
