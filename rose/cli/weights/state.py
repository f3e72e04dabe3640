"""A publisher's state, kept across restarts so that no version number is used twice."""

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
    """State of a publisher: its run, its version numbers, and the published checkpoints.

    Args:
        run: name of the training run.
        incarnation: incarnation of the publisher; rises with each start.
        n: number of the newest version that was or may have been published.
        newest: path of the newest published checkpoint.
        published: paths of published checkpoints.
        format: number of the file format.
    """

    run: str
    incarnation: _Count
    n: _Count
    newest: str
    published: tuple[str, ...] = ()
    format: Literal[1] = 1


def read_state(path: Path) -> PublishState | None:
    """Read a state file; return None if it does not exist.

    Raises:
        CorruptData: the file is not a publisher's state.
        InvalidArgument: the file cannot be read.
    """
    try:
        return msgspec.json.decode(read_input(path, bytes_max=_BYTES_MAX), type=PublishState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{path} is not the state of a publisher: {error}") from None


def write_state(path: Path, state: PublishState) -> None:
    """Write a state file atomically.

    Raises:
        Unavailable: the file cannot be written.
    """
    try:
        write_whole(path, msgspec.json.encode(state))
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror or error}") from error


def entries(folder: Path) -> Iterator[Path]:
    """Yield the checkpoints of a folder in natural order: "step-9" before "step-10".

    Entries whose name begins with a dot are still being written, so they are skipped.

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
