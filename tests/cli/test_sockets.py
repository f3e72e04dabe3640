"""The default socket lies where only this user can put files."""

import os
from pathlib import Path

import pytest

from rose.cli.sockets import default_socket
from rose.errors import Unavailable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of a user without a session."""
    monkeypatch.setattr("rose.cli.sockets._SESSIONS", str(tmp_path / "none"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_folder_of_the_session_is_used_if_only_its_user_can_write_it(home, monkeypatch) -> None:
    session = home / "session"
    session.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert default_socket() == str(session / "rose.sock")
    session.chmod(0o777)
    assert default_socket() == str(home / ".rose" / "rose.sock")
    session.chmod(0o700)
    monkeypatch.setattr("rose.cli.sockets.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Unavailable, match="another user owns it"):
        default_socket()


def test_without_a_session_the_folder_is_made_for_this_user_alone(home) -> None:
    for _ in range(2):
        assert default_socket() == str(home / ".rose" / "rose.sock")
    assert (home / ".rose").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["open", "link", "file"])
def test_a_folder_that_is_not_private_is_refused(home, what) -> None:
    folder = home / ".rose"
    match what:
        case "open":
            folder.mkdir()
            folder.chmod(0o777)
        case "link":
            (home / "elsewhere").mkdir()
            folder.symlink_to(home / "elsewhere")
        case "file":
            folder.touch()
    with pytest.raises(Unavailable, match="no private folder for a socket"):
        default_socket()
