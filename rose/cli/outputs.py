"""Where commands write the files that a user names."""

from pathlib import Path

from rose.errors import InvalidArgument
from rose.whole_file import write_whole


def write_output(path: Path, content: bytes, *, what: str) -> None:
    """Write a file that a user named; it appears whole or not at all, links are followed.

    Args:
        path: where; a device, a pipe or a standard stream is written as it is.
        content: of the file.
        what: the content's name in the sentence of a failure.

    Raises:
        InvalidArgument: it cannot be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {what} to {path}: {error.strerror or error}; "
            f"name a file in a directory that can be written"
        ) from None
