"""The socket of a device, as an option of several commands."""

import os
import stat
from pathlib import Path
from typing import Final

import click

from rose.config import read_environment
from rose.errors import Unavailable

_NAME: Final = "rose.sock"
_SESSIONS: Final = "/run/user"
_OF_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def default_socket() -> str:
    """Return the path at which this user's device listens by default.

    Only this user can write the folder, so nobody else can put files there. The folder is
    `XDG_RUNTIME_DIR`, else `/run/user/UID`, else `.rose` in the user's home, which is created.

    Raises:
        Unavailable: there is no such folder.
    """
    environment = read_environment()
    for name in filter(None, (environment.runtime_folder, f"{_SESSIONS}/{os.geteuid()}")):
        if _is_private(Path(name)):
            return str(Path(name) / _NAME)
    folder = Path(environment.home) / ".rose"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        why = (
            None
            if _is_private(folder)
            else "it is no folder, others can write it, or another user owns it"
        )
    except OSError as error:
        why = error.strerror
    if why is not None:
        raise Unavailable(
            f"this user has no private folder for a socket ({folder}: {why}): name a socket"
        )
    return str(folder / _NAME)


def _is_private(folder: Path) -> bool:
    """Return whether `folder` is a folder of this user that nobody else can write."""
    try:
        there = folder.stat(follow_symlinks=False)
    except OSError:
        return False
    is_own = stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid()
    return is_own and not there.st_mode & _OF_OTHERS


socket_option = click.option(
    "--socket",
    "socket_path",
    metavar="SOCKET",
    default=default_socket,
    show_default="this user's",
    help="Socket of the device.",
)
