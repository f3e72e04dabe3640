"""The socket of a device, as an option of several commands."""

import os
from pathlib import Path

import click


def default_socket() -> str:
    """Return the path at which this user's device listens by default."""
    folder = Path(f"/run/user/{os.geteuid()}")
    return str(folder / "rose.sock" if folder.is_dir() else f"/tmp/rose-{os.geteuid()}.sock")


socket_option = click.option(
    "--socket",
    "socket_path",
    metavar="SOCKET",
    default=default_socket,
    show_default="this user's",
    help="Socket of the device.",
)
